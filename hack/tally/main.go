// Tally reads the output of go test -json, prints it for a person and counts it.
//
//	go test -json ./... | tally [-o FILE]
//	tally FILE ...
//
// The first form prints a line per package and per top-level test that took long, and
// all that a failed or skipped test wrote. Its last line is "N passed, N failed", and
// with -o that line is written to FILE too. The second form adds up such files. Both
// end with status 1 when anything failed, or when nothing was counted at all: a run of
// no tests proves nothing.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("tally", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("o", "", "write the closing line to this `file` too")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	total, err := count(flags.Args(), stdin, stdout)
	if err == nil && *out != "" {
		err = os.WriteFile(*out, []byte(total.String()+"\n"), 0o644)
	}
	if err != nil {
		fmt.Fprintf(stderr, "tally: %v\n", err)
		return 1
	}
	fmt.Fprintln(stdout, total)
	if total.Failed > 0 || total.Passed == 0 {
		return 1
	}
	return 0
}

// count adds up the files of former runs, or reads a run from stdin when there are
// none.
func count(files []string, stdin io.Reader, stdout io.Writer) (Total, error) {
	if len(files) == 0 {
		return Read(stdin, stdout)
	}
	var sum Total
	var errs []error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t, err := ParseTotal(string(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", file, err))
		}
		sum = sum.Plus(t)
	}
	return sum, errors.Join(errs...)
}
