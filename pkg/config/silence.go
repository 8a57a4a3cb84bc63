package config

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// patienceWithSilence is how long an answer may say nothing. A watch of a server that
// works says something every minute: if there is no news, a bookmark. HTTP/2's pings
// only show that the connection lives; they are answered by a proxy before a dead
// server too, and by a server whose watches are stuck.
const patienceWithSilence = 3 * time.Minute

// errSilent is why an answer was given up. For client-go it is a timeout: a watch that
// ends so begins again where it was.
var errSilent error = silence{}

type silence struct{}

func (silence) Error() string {
	return "the API server has said nothing for " + patienceWithSilence.String()
}
func (silence) Timeout() bool   { return true }
func (silence) Temporary() bool { return true }

// impatient gives up requests whose answers say nothing for too long.
type impatient struct {
	next http.RoundTripper
	// fellSilent hears of an answer that began and was given up.
	fellSilent func(error)
}

// RoundTrip implements http.RoundTripper.
func (i impatient) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(request.Context())
	timer := time.AfterFunc(patienceWithSilence, func() { cancel(errSilent) })
	response, err := i.next.RoundTrip(request.WithContext(ctx))
	timer.Stop()
	if err != nil {
		err = because(ctx, err)
		cancel(nil)
		return nil, err
	}
	response.Body = &impatientBody{response.Body, ctx, cancel, timer, i.fellSilent}
	return response, nil
}

// because returns errSilent if that is why a request ended, and otherwise err.
func because(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

// impatientBody is the body of an answer. Only the time of reads counts: a reader that
// is busy with what came before must not be taken for a silent server.
type impatientBody struct {
	io.ReadCloser
	ctx        context.Context
	cancel     context.CancelCauseFunc
	timer      *time.Timer
	fellSilent func(error)
}

// Read implements io.Reader.
func (b *impatientBody) Read(p []byte) (int, error) {
	b.timer.Reset(patienceWithSilence)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if err != nil {
		if err = because(b.ctx, err); errors.Is(err, errSilent) {
			b.fellSilent(err)
		}
	}
	return n, err
}

// Close implements io.Closer.
func (b *impatientBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}
