package iptables

// Culprit is a part of restore input that is refused, and why.
type Culprit[T any] struct {
	Item T
	Err  error
}

// Narrow finds out which of some items are refused. Try writes what several need, where
// no packet meets it. A group that is refused is halved until single items are left, and
// of none is it believed before it has been refused twice.
//
// It stops at the first error that is no refusal: a lock that is held would be waited for
// again with each half. What was found until then is returned with the error.
func Narrow[T any](items []T, try func([]T) error) (refused []Culprit[T], err error) {
	if len(items) == 0 {
		return nil, nil
	}
	if err = try(items); !IsRefused(err) {
		return nil, err
	}
	if len(items) == 1 {
		if err = try(items); !IsRefused(err) {
			return nil, err
		}
		return []Culprit[T]{{Item: items[0], Err: err}}, nil
	}
	half := len(items) / 2
	if refused, err = Narrow(items[:half], try); err != nil {
		return refused, err
	}
	more, err := Narrow(items[half:], try)
	return append(refused, more...), err
}
