package render

import (
	"slices"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
)

// DefaultCommentLimit is as many endpoints as kube-proxy writes comments for.
const DefaultCommentLimit = 1000

// For returns the options for a snapshot. They say whether it has more endpoints than
// there shall be comments for.
func (o Options) For(s model.Snapshot) Options {
	o.Bare = o.CommentLimit > 0 && hasMoreEndpoints(s, o.CommentLimit)
	return o
}

// hasMoreEndpoints reports whether a snapshot has more endpoints than that. It stops
// counting there: every sync asks.
func hasMoreEndpoints(s model.Snapshot, limit int) bool {
	n := 0
	for _, endpoints := range s.Endpoints {
		if n += len(endpoints); n > limit {
			return true
		}
	}
	return false
}

// uncomment takes the comments off the rules of a Service port's chain, if they shall
// have none. What leads there keeps its comments, so that a Service is still found by
// its name.
func (o Options) uncomment(rules []ruleset.Rule) []ruleset.Rule {
	if o.Bare {
		return withoutComments(rules)
	}
	return o.Lacks.uncomment(rules)
}

func withoutComments(rules []ruleset.Rule) []ruleset.Rule {
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].Comment = ""
	}
	return rules
}
