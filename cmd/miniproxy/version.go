package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
)

// version is stamped by the build: -ldflags '-X main.version=v1.2.3'.
var version string

// versionName is the stamped version, or what the Go tool knows about the source.
func versionName() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown)"
}

// printVersion prints the version.
func printVersion(_ context.Context, args []string, io streams) error {
	if slices.Equal(args, []string{"--help"}) || slices.Equal(args, []string{"-h"}) {
		fmt.Fprintln(io.out, "Usage: miniproxy version\n\nPrints the version. It has no flags.")
		return nil
	}
	if len(args) > 0 {
		return usageError{errors.New("version takes no arguments")}
	}
	_, err := fmt.Fprintf(io.out, "miniproxy %s %s %s/%s\n", versionName(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
