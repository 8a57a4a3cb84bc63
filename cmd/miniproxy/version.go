package main

import (
	"context"
	"fmt"
	"runtime"

	"k8s.io/component-base/version"
)

// printVersion prints the version that the build was stamped with.
func printVersion(_ context.Context, args []string, io streams) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("version takes no arguments")}
	}
	info := version.Get()
	_, err := fmt.Fprintf(io.out, "miniproxy %s %s %s/%s\n", info.GitVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
