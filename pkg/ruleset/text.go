package ruleset

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// appendQuoted appends s as iptables-save prints free text: bare when it is made
// of letters, digits, - and _ only, in double quotes otherwise. A leading - is
// quoted too, which iptables-save does not do: bare, "-t" would be read as an option.
func appendQuoted(b []byte, s string) []byte {
	if isPlain(s) {
		return append(b, s...)
	}
	b = append(b, '"')
	for i := range len(s) {
		switch s[i] {
		case '"', '\\', '\'':
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

func isPlain(s string) bool {
	if s == "" || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// cleanComment returns s as a comment can carry it: control characters and broken
// UTF-8 replaced, since a newline would end the line of the restore input, and cut
// to MaxComment bytes between two characters.
func cleanComment(s string) string {
	if !isCleanText(s) {
		s = strings.Map(func(r rune) rune {
			if isControl(r) {
				return ' '
			}
			if r == utf8.RuneError {
				return '?'
			}
			return r
		}, s)
	}
	if len(s) <= MaxComment {
		return s
	}
	end := MaxComment
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

func isControl(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }

func isCleanText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f {
			return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool {
				return isControl(r) || r == utf8.RuneError
			}) < 0
		}
	}
	return true
}

// appendWord appends a name as one word. What would end the word or start a quote
// is replaced, so that no name can add a word or a line of its own; iptables
// refuses such names in any case.
func appendWord(b []byte, s string) []byte {
	if isWord(s) {
		return append(b, s...)
	}
	if s == "" || s == "!" {
		return append(b, '_') // or else the next word would be taken for the name
	}
	for i := range len(s) {
		c := s[i]
		if !isWordByte(c) {
			c = '_'
		}
		b = append(b, c)
	}
	return b
}

// isWord reports whether s can stand bare in restore input. A lone ! negates.
func isWord(s string) bool {
	for i := range len(s) {
		if !isWordByte(s[i]) {
			return false
		}
	}
	return s != "" && s != "!"
}

func isWordByte(c byte) bool { return c > ' ' && c != '"' && c != 0x7f }

// appendRaw appends text that is kept as it was read, on the same line.
func appendRaw(b []byte, text string) []byte {
	b = append(b, ' ')
	start := len(b)
	b = append(b, text...)
	for i, c := range b[start:] {
		if c < ' ' || c == 0x7f {
			b[start+i] = ' '
		}
	}
	return b
}

// token is one word of a line.
type token struct {
	// raw is the word as it is written, with its quotes.
	raw string
	// text is what the word means.
	text string
}

var (
	errQuote   = errors.New("a quote is not closed")
	errControl = errors.New("a control character in the line")
)

// tokenize splits a line as iptables-restore does, and appends its words to
// tokens: blanks separate, double quotes group, and inside them a backslash takes
// the next character as it is.
func tokenize(line string, tokens []token) ([]token, error) {
	for i := 0; i < len(line); {
		if line[i] == ' ' || line[i] == '\t' {
			i++
			continue
		}
		end, err := wordEnd(line, i)
		if err != nil {
			return nil, err
		}
		raw := line[i:end]
		tokens = append(tokens, token{raw: raw, text: unquote(raw)})
		i = end
	}
	return tokens, nil
}

// wordEnd returns where the word that starts at i ends.
func wordEnd(line string, i int) (int, error) {
	quoted := false
	escaped := false
	for ; i < len(line); i++ {
		switch c := line[i]; {
		case c != '\t' && (c < ' ' || c == 0x7f):
			return 0, errControl
		case escaped:
			escaped = false
		case c == '"':
			quoted = !quoted
		case quoted:
			escaped = c == '\\'
		case c == ' ' || c == '\t':
			return i, nil
		}
	}
	if quoted {
		return 0, errQuote
	}
	return i, nil
}

func unquote(raw string) string {
	if strings.IndexByte(raw, '"') < 0 {
		return raw
	}
	text := make([]byte, 0, len(raw))
	quoted := false
	for i := 0; i < len(raw); i++ {
		switch {
		case raw[i] == '"':
			quoted = !quoted
			continue
		case quoted && raw[i] == '\\':
			i++
		}
		text = append(text, raw[i])
	}
	return string(text)
}
