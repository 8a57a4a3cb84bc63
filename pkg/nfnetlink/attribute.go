package nfnetlink

import (
	"encoding/binary"
	"iter"
)

const (
	attributeHeader = 4
	// nested marks an attribute that holds attributes; typeMask takes this and the
	// byte order mark off a type.
	nested   = 1 << 15
	typeMask = 1<<14 - 1
)

// Attributes are the attributes in b, by type. What is cut off at the end is left
// out.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attributeHeader {
			length := int(binary.NativeEndian.Uint16(b))
			if length < attributeHeader || length > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&typeMask, b[attributeHeader:length]) {
				return
			}
			b = b[min(align(length), len(b)):]
		}
	}
}

// AppendAttribute appends an attribute to b.
func AppendAttribute(b []byte, kind uint16, data ...byte) []byte {
	length := attributeHeader + len(data)
	b = binary.NativeEndian.AppendUint16(b, uint16(length))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	return append(b, make([]byte, align(length)-length)...)
}

// AppendNested appends an attribute that holds the attributes in data.
func AppendNested(b []byte, kind uint16, data []byte) []byte {
	return AppendAttribute(b, kind|nested, data...)
}

// align rounds a length up to where the next message or attribute begins.
func align(n int) int { return (n + 3) &^ 3 }
