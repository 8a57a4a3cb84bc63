package render

import (
	"testing"

	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// TestCommentLimit: above it the rules in a Service port's chains have no comments, and
// those that lead there have.
func TestCommentLimit(t *testing.T) {
	w := newWorld().
		with(service("s", nodePort, affinity), A, B).
		with(service("t", at("10.96.0.81"), loadBalancer, ranges("10.9.0.0/16")), A)
	tests := []struct {
		name     string
		limit    int
		comments bool
	}{
		{name: "no limit", limit: 0, comments: true},
		{name: "as many as the limit", limit: 3, comments: true},
		{name: "more", limit: 2, comments: false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := w.render(options(func(o *Options) { o.CommentLimit = tt.limit }))
			for id, chain := range r.Ruleset {
				want := tt.comments || !IsPerService(id)
				for _, rule := range chain.Rules {
					if rule.Action != nil && rule.Comment == "" == want && isCommented(w, id) {
						t.Errorf("%s: %q: comment %v, want %v", id, rule, !want, want)
					}
				}
			}
			if a, b := w.render(options()), r; len(a.Ruleset) != len(b.Ruleset) {
				t.Errorf("%d chains, want %d", len(b.Ruleset), len(a.Ruleset))
			}
		})
	}
}

// isCommented reports whether all rules of a chain have comments without a limit.
func isCommented(w world, id ruleset.ChainID) bool {
	for _, rule := range w.render(options()).Ruleset[id].Rules {
		if rule.Comment == "" {
			return false
		}
	}
	return true
}

// TestCommentLimitIsPartOfTheOptions: to cross it concerns every Service.
func TestCommentLimitIsPartOfTheOptions(t *testing.T) {
	few, many := newWorld().with(service("s"), A), newWorld().with(service("s"), A, B)
	o := options(func(o *Options) { o.CommentLimit = 1 })
	if o.For(few.Snapshot).Equal(o.For(many.Snapshot)) {
		t.Error("options on both sides of the limit are equal")
	}
	if !o.For(many.Snapshot).For(few.Snapshot).Equal(o.For(few.Snapshot)) {
		t.Error("options remember an earlier snapshot")
	}
	if o.CommentLimit = 5; !o.For(few.Snapshot).Equal(o.For(many.Snapshot)) {
		t.Error("options below the limit differ")
	}
}
