package nfnetlink

import (
	"bytes"
	"testing"
)

type attribute struct {
	kind uint16
	data string
}

func read(b []byte) []attribute {
	var all []attribute
	for kind, data := range Attributes(b) {
		all = append(all, attribute{kind, string(data)})
	}
	return all
}

func TestAttributes(t *testing.T) {
	inner := AppendAttribute(nil, 7, 'x')
	whole := AppendAttribute(nil, 1)
	whole = AppendAttribute(whole, 2, 'a', 'b', 'c')
	whole = AppendNested(whole, 3, inner)
	whole = AppendAttribute(whole, 4, 'd', 'e', 'f', 'g')
	if len(whole)%4 != 0 {
		t.Errorf("got %d bytes, want attributes to end where the next can begin", len(whole))
	}
	want := []attribute{{1, ""}, {2, "abc"}, {3, string(inner)}, {4, "defg"}}
	got := read(whole)
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("attribute %d: got %v, want %v", i, got[i], want[i])
		}
	}
	for range Attributes(whole) {
		break // leaving early is allowed
	}
}

func TestAttributesCutOff(t *testing.T) {
	whole := AppendAttribute(AppendAttribute(nil, 1, 'a', 'b'), 2, 'c', 'd', 'e', 'f')
	for _, tc := range []struct {
		name string
		b    []byte
		want int
	}{
		{"nothing", nil, 0},
		{"half a header", whole[:3], 0},
		{"first without its padding", whole[:6], 1},
		{"second without its end", whole[:len(whole)-1], 1},
		{"length below the header's", []byte{3, 0, 1, 0}, 0},
		{"length 0", []byte{0, 0, 1, 0, 0, 0, 0, 0}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := read(tc.b); len(got) != tc.want {
				t.Errorf("got %v, want %d attributes", got, tc.want)
			}
		})
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add(AppendNested(AppendAttribute(nil, 1, 'a'), 2, AppendAttribute(nil, 3, 'b')))
	f.Fuzz(func(t *testing.T, b []byte) {
		rest := b
		for _, data := range Attributes(b) {
			at := bytes.Index(rest, data)
			if at < 0 {
				t.Fatalf("attribute %x is not part of the rest %x", data, rest)
			}
			rest = rest[at+len(data):]
		}
	})
}
