// Package golden loads the golden cases: clusters as API objects, with the rules
// that kube-proxy wrote for one of their nodes. README.md describes the files.
package golden

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miniproxy/miniproxy/pkg/model"
	"github.com/miniproxy/miniproxy/pkg/ruleset"
	"github.com/miniproxy/miniproxy/pkg/trace"
)

//go:embed cases
var files embed.FS

// Case is one golden case.
type Case struct {
	Name string
	// About is one line on what the case is about.
	About string
	// Config is the KubeProxyConfiguration to begin with, as YAML.
	Config []byte
	// Host is the node under test.
	Host trace.Host
	// Before is input for iptables-restore before the agent starts, nil for none.
	Before []byte
	// Steps are what happens, one after the other; there is at least one.
	Steps []Step
}

// Step is a state of the cluster and the rules that belong to it.
type Step struct {
	// Objects are all objects that there are.
	Objects Objects
	// Config, if not nil, is the configuration that the agent is started anew with.
	Config []byte
	// Results are the rules of tables nat and filter, by family. Each of them is as
	// good as the others. A family that the case is not about is missing.
	Results map[model.Family][]ruleset.Ruleset
}

// Objects are the API objects of a cluster, in the order of the file.
type Objects struct {
	Nodes    []*v1.Node
	Services []*v1.Service
	Slices   []*discoveryv1.EndpointSlice
}

// Names returns the names of all cases, sorted.
func Names() ([]string, error) {
	entries, err := files.ReadDir("cases")
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// Load loads one case.
func Load(name string) (Case, error) {
	c, err := load(path.Join("cases", name))
	if err != nil {
		return Case{}, fmt.Errorf("golden case %s: %w", name, err)
	}
	c.Name = name
	return c, nil
}

func load(dir string) (Case, error) {
	var c Case
	about, err := files.ReadFile(path.Join(dir, "about.txt"))
	if err != nil {
		return c, err
	}
	c.About = strings.TrimSpace(string(about))
	if c.Config, err = files.ReadFile(path.Join(dir, "config.yaml")); err != nil {
		return c, err
	}
	if c.Before, err = readOptional(path.Join(dir, "before.rules")); err != nil {
		return c, err
	}
	host, err := files.ReadFile(path.Join(dir, "host.txt"))
	if err != nil {
		return c, err
	}
	if c.Host, err = parseHost(string(host)); err != nil {
		return c, err
	}
	c.Steps, err = loadSteps(dir)
	return c, err
}

func loadSteps(dir string) ([]Step, error) {
	objects, err := readOptional(path.Join(dir, "objects.yaml"))
	if err != nil {
		return nil, err
	}
	if objects != nil {
		step, err := loadStep(dir, objects)
		return []Step{step}, err
	}
	var steps []Step
	for n := 1; ; n++ {
		objects, err := readOptional(path.Join(dir, fmt.Sprintf("step-%d.yaml", n)))
		if err != nil {
			return nil, err
		}
		if objects == nil {
			break
		}
		step, err := loadStep(path.Join(dir, fmt.Sprintf("step-%d", n)), objects)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", n, err)
		}
		if step.Config, err = readOptional(path.Join(dir, fmt.Sprintf("config-%d.yaml", n))); err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	if len(steps) == 0 {
		return nil, errors.New("neither objects.yaml nor step-1.yaml")
	}
	return steps, nil
}

// loadStep loads the results in a folder for the given objects.
func loadStep(dir string, objects []byte) (Step, error) {
	step := Step{Results: map[model.Family][]ruleset.Ruleset{}}
	var err error
	if step.Objects, err = decodeObjects(objects); err != nil {
		return step, err
	}
	for _, dir := range []string{dir, path.Join(dir, "alt")} {
		for _, family := range model.Families {
			rs, err := loadResult(dir, family)
			if err != nil {
				return step, err
			}
			if rs != nil {
				step.Results[family] = append(step.Results[family], rs)
			}
		}
	}
	if len(step.Results) == 0 {
		return step, fmt.Errorf("no results in %s", dir)
	}
	return step, nil
}

// loadResult returns nil for a family that a folder has no results of.
func loadResult(dir string, family model.Family) (ruleset.Ruleset, error) {
	suffix := ".save"
	if family == model.IPv6 {
		suffix = "6.save"
	}
	nat, err := readOptional(path.Join(dir, "nat"+suffix))
	if err != nil || nat == nil {
		return nil, err
	}
	filter, err := files.ReadFile(path.Join(dir, "filter"+suffix))
	if err != nil {
		return nil, err
	}
	rs, err := ruleset.Decode(append(nat, filter...))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return rs, nil
}

// readOptional returns nil for a file that is not there.
func readOptional(name string) ([]byte, error) {
	data, err := files.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}
