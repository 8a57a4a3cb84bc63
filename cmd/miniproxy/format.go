package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// The formats that a command can print in.
const (
	formatText = "text"
	formatJSON = "json"
)

func checkFormat(format string) error {
	switch format {
	case formatText, formatJSON:
		return nil
	}
	return usageError{fmt.Errorf("--output: %q is no format: use text or json", format)}
}

func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false) // rules have > and & in their comments
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
