package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// labPrefix begins the names of the demo's namespaces.
const labPrefix = "mpdemo"

// stateDir is where a demo notes what it has started. It is gone after a reboot, as
// processes and namespaces are.
const stateDir = "/run/miniproxy-demo"

// record is what must be known to take a demo down, also by a later process: after
// --keep, or after the demo was killed.
type record struct {
	Lab   string    `json:"lab"`
	Owner processID `json:"owner"`
	// Kept says that the demo is to stand after its owner has ended.
	Kept      bool        `json:"kept"`
	Processes []processID `json:"processes"`
}

// newRecord writes the record of a demo that has started nothing yet.
func newRecord(labName string) (*record, error) {
	owner, err := identify(os.Getpid())
	if err != nil {
		return nil, err
	}
	r := &record{Lab: labName, Owner: owner}
	if err := os.MkdirAll(r.dir(), 0o755); err != nil {
		return nil, err
	}
	return r, r.save()
}

// dir holds the demo's manifests and logs.
func (r *record) dir() string { return filepath.Join(stateDir, r.Lab) }

func (r *record) file() string { return r.dir() + ".json" }

// add notes a process that was started.
func (r *record) add(id processID) error {
	r.Processes = append(r.Processes, id)
	return r.save()
}

// keep notes that the demo is to stand.
func (r *record) keep() error {
	r.Kept = true
	return r.save()
}

// save puts the record in its place whole: a half one could not be taken down.
func (r *record) save() error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	draft := filepath.Join(r.dir(), "record.draft")
	if err := os.WriteFile(draft, text, 0o644); err != nil {
		return fmt.Errorf("note what the demo has started: %w", err)
	}
	return os.Rename(draft, r.file())
}

// takeDown ends the demo's processes, the last one first, and removes its namespaces
// and files. After an error the record stays, for another try.
func (r *record) takeDown() error {
	var errs []error
	for i := len(r.Processes) - 1; i >= 0; i-- {
		errs = append(errs, r.Processes[i].end(grace))
	}
	errs = append(errs, lab.Remove(r.Lab))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take down the demo %s: %w", r.Lab, err)
	}
	return errors.Join(os.RemoveAll(r.dir()), os.Remove(r.file()))
}

// records reads the records of all demos of this machine.
func records() ([]*record, error) {
	files, err := filepath.Glob(filepath.Join(stateDir, labPrefix+"-*.json"))
	if err != nil {
		return nil, err
	}
	var list []*record
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // another process took it down in between
		}
		if err != nil {
			return nil, err
		}
		r := &record{}
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		list = append(list, r)
	}
	return list, nil
}

// removeLeft takes down what killed demos have left. It leaves alone what was kept
// on purpose and what still runs.
func removeLeft() error {
	list, err := records()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range list {
		if !r.Kept && !r.Owner.lives() {
			errs = append(errs, r.takeDown())
		}
	}
	return errors.Join(errs...)
}

// Cleanup takes down the demos of the given names, without any every demo of this
// machine: those that were kept, and what killed ones have left. It leaves alone what
// still runs, and tells out what it did.
func Cleanup(out io.Writer, names ...string) error {
	if os.Geteuid() != 0 {
		return &MissingError{Root: true}
	}
	list, err := records()
	if err != nil {
		return err
	}
	if len(names) > 0 {
		list = slices.DeleteFunc(list, func(r *record) bool { return !slices.Contains(names, r.Lab) })
	}
	var errs []error
	for _, r := range list {
		if !r.Kept && r.Owner.lives() {
			fmt.Fprintf(out, "The demo %s is running (process %d): end it with Ctrl-C.\n", r.Lab, r.Owner.PID)
			continue
		}
		if err := r.takeDown(); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(out, "The demo %s is removed.\n", r.Lab)
	}
	if len(list) == 0 {
		fmt.Fprintln(out, "There is nothing to remove.")
	}
	return errors.Join(errs...)
}
