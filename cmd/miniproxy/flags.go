package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/miniproxy/miniproxy/pkg/config"
	"github.com/miniproxy/miniproxy/pkg/iptables"
	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/proxier"
	"github.com/miniproxy/miniproxy/pkg/render"
)

// options are the flags that the agent and the commands about it share.
type options struct {
	set    *pflag.FlagSet
	config *config.Flags
	// about is what the help says before the flags; it may be empty.
	about string
	// backend is where the rules are kept: auto, nft or legacy.
	backend string
	// flatDispatch and flatBalance are the sizes up to which chains are flat.
	flatDispatch, flatBalance int
	// commentLimit is up to how many endpoints the rules in Service ports' chains have comments.
	commentLimit int
	// dropEstablished has connections to removed endpoints cut.
	dropEstablished bool
}

// newOptions registers the shared flags for a command.
func newOptions(command string) *options {
	o := &options{set: pflag.NewFlagSet("miniproxy "+command, pflag.ContinueOnError)}
	o.set.SortFlags = false
	o.config = config.NewFlags(o.set)
	o.set.StringVar(&o.backend, "iptables-backend", "auto", "Where the kernel keeps the rules: nft, legacy, or auto for the one that the rest of the node uses.")
	o.set.IntVar(&o.flatDispatch, "flat-dispatch-limit", render.DefaultFlatDispatch, "Entries up to which KUBE-SERVICES, KUBE-NODEPORTS and their like are one flat chain; above, each is a tree.")
	o.set.IntVar(&o.flatBalance, "flat-balance-limit", render.DefaultFlatBalance, "Endpoints up to which a Service port's chain is flat; above, the endpoints are in groups.")
	o.set.IntVar(&o.commentLimit, "comment-limit", render.DefaultCommentLimit, "Endpoints, of all Services, up to which the rules in Service ports' chains have comments; above, they would make every change and every connection dearer. The rules that lead there always have them.")
	o.set.BoolVar(&o.dropEstablished, "conntrack-drop-established-on-endpoint-removal", false, "Also cut established TCP connections to endpoints that were removed. Default: only those still waiting for an answer are led elsewhere.")
	return o
}

// rendering is what the configuration means for one family on the node and host.
func (o *options) rendering(c *config.Config, family model.Family, node model.NodeFacts, host proxier.Host) render.Options {
	opts := proxier.Options(c, family, node, host)
	opts.CommentLimit = o.commentLimit
	opts.FlatDispatch, opts.FlatBalance = o.flatDispatch, o.flatBalance
	return opts
}

// renderingHere is rendering with the addresses that the host has now, and without what
// a family's kernel lacks. The agent and diff both ask it.
func (o *options) renderingHere(c *config.Config, can *capabilities, node model.NodeFacts, host proxier.Host) (render.Options, error) {
	addresses, err := hostAddresses()
	if err != nil {
		return render.Options{}, err
	}
	host = can.host(host)
	host.Addresses = addresses
	return o.rendering(c, can.kernel.Family(), node, host).Without(can.lacks(), addresses), nil
}

// parse reads a command line. Everything that is wrong with it, or with the
// configuration that it names, is a usageError.
func (o *options) parse(args []string, io streams) (*config.Config, error) {
	o.set.SetOutput(io.err)
	o.set.Usage = func() {
		fmt.Fprintf(io.out, "Usage: %s [FLAGS]\n\n", o.set.Name())
		if o.about != "" {
			fmt.Fprintln(io.out, o.about)
		}
		fmt.Fprintf(io.out, "Flags:\n%s", o.set.FlagUsages())
	}
	if err := o.set.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil, err
	} else if err != nil {
		return nil, usageError{fmt.Errorf("%w; see %s --help", err, o.set.Name())}
	}
	if o.set.NArg() > 0 {
		return nil, usageError{fmt.Errorf("unexpected argument %q; see %s --help", o.set.Arg(0), o.set.Name())}
	}
	c, err := o.config.Config()
	if err := errors.Join(err, atLeastOne("flat-dispatch-limit", o.flatDispatch), atLeastOne("flat-balance-limit", o.flatBalance), atLeastOne("comment-limit", o.commentLimit)); err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

func atLeastOne(flag string, value int) error {
	if value < 1 {
		return fmt.Errorf("--%s: must be at least 1, not %d", flag, value)
	}
	return nil
}

// forcedBackend is the backend that the command line names, none for auto.
func (o *options) forcedBackend() (iptables.Backend, error) {
	backend, err := iptables.ParseBackend(o.backend)
	if err != nil {
		return "", usageError{fmt.Errorf("--iptables-backend: %w", err)}
	}
	return backend, nil
}

// values are all flags with their values.
func (o *options) values() map[string]string {
	values := map[string]string{}
	o.set.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}
