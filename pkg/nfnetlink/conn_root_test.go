package nfnetlink

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/miniproxy/miniproxy/pkg/lab/labtest"
)

// The accounting objects of nfnetlink_acct serve as a table: they can be made, got,
// listed and deleted with a name only.
const (
	acctNew    = 7 << 8
	acctGet    = 7<<8 | 1
	acctDelete = 7<<8 | 3
)

func named(kind, flags uint16, name string) Message {
	return Message{Type: kind, Flags: flags, Attributes: AppendAttribute(nil, 1, append([]byte(name), 0)...)}
}

func nameOf(m Message) string {
	for kind, data := range Attributes(m.Attributes) {
		if kind == 1 {
			return unix.ByteSliceToString(data)
		}
	}
	return ""
}

// inNamespace runs test with a connection to an empty network namespace.
func inNamespace(t *testing.T, test func(*Conn) error) {
	t.Helper()
	host, err := labtest.New(t).Host("node")
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Do(func() error {
		c, err := Dial()
		if err != nil {
			return err
		}
		return errors.Join(test(c), c.Close())
	}); err != nil {
		t.Fatal(err)
	}
}

func TestConn(t *testing.T) {
	const total = 5000 // more than one batch, and more than one packet of a dump
	inNamespace(t, func(c *Conn) error {
		requests := make([]Message, 0, total+1)
		name := func(i int) string {
			return string([]byte{'n', byte('a' + i/676%26), byte('a' + i/26%26), byte('a' + i%26)})
		}
		for i := range total {
			requests = append(requests, named(acctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, name(i)))
		}
		requests = append(requests, named(acctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, name(0)))
		results, err := c.Do(t.Context(), requests...)
		if err != nil {
			return err
		}
		for i, result := range results {
			if i < total && result != nil {
				t.Fatalf("request %d: got %v, want nil", i, result)
			}
		}
		if len(results) != total+1 || !errors.Is(results[total], unix.EBUSY) && !errors.Is(results[total], unix.EEXIST) {
			t.Errorf("got %d results, the last one %v; want %d and one that says the name is taken", len(results), results[len(results)-1], total+1)
		}

		got := ""
		if err := c.Get(named(acctGet, 0, name(7)), func(m Message) error { got = nameOf(m); return nil }); err != nil || got != name(7) {
			t.Errorf("got %q, %v, want %q", got, err, name(7))
		}
		if err := c.Get(named(acctGet, 0, "none"), func(Message) error { return nil }); !errors.Is(err, unix.ENOENT) {
			t.Errorf("got %v for an object that is not there, want ENOENT", err)
		}

		seen := map[string]bool{}
		if err := c.Dump(t.Context(), Message{Type: acctGet}, func(m Message) error { seen[nameOf(m)] = true; return nil }); err != nil {
			return err
		}
		if len(seen) != total {
			t.Errorf("dump has %d objects, want %d", len(seen), total)
		}
		// The connection goes on working after each of the above.
		results, err = c.Do(t.Context(), named(acctDelete, 0, name(0)), named(acctDelete, 0, name(0)))
		if err != nil || len(results) != 2 || results[0] != nil || !errors.Is(results[1], unix.ENOENT) {
			t.Errorf("deleting twice: got %v, %v, want nil and ENOENT", results, err)
		}
		return nil
	})
}

func TestDumpEndsWithTheFirstError(t *testing.T) {
	inNamespace(t, func(c *Conn) error {
		if _, err := c.Do(t.Context(), named(acctNew, unix.NLM_F_CREATE, "one"), named(acctNew, unix.NLM_F_CREATE, "two")); err != nil {
			return err
		}
		boom := errors.New("boom")
		calls := 0
		if err := c.Dump(t.Context(), Message{Type: acctGet}, func(Message) error { calls++; return boom }); !errors.Is(err, boom) || calls != 1 {
			t.Errorf("got %v after %d calls, want the first call's error", err, calls)
		}
		return nil
	})
}

func TestCancelled(t *testing.T) {
	inNamespace(t, func(c *Conn) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Dump(ctx, Message{Type: acctGet}, func(Message) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("dump: got %v, want cancelled", err)
		}
		if results, err := c.Do(ctx, named(acctNew, unix.NLM_F_CREATE, "one")); len(results) != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("do: got %v, %v, want nothing done and cancelled", results, err)
		}
		return nil
	})
}
