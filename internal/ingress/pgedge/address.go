package pgedge

import (
	"errors"
	"fmt"
	"strings"
)

// Suffixes of the names of an endpoint's further servers.
const (
	readOnlyPoolerSuffix = "-ro-pooler"
	poolerSuffix         = "-pooler"
	readOnlySuffix       = "-ro"
)

const maxLabel = 63 // of DNS

// Address is what a client connects to.
type Address struct {
	Endpoint string // id; "" if the client did not name one
	Target   Target
}

// ParseHost returns the address that a host name below suffix stands for.
//
// ok is false for a name that is not exactly one valid label below suffix.
func ParseHost(host, suffix string) (a Address, ok bool) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	label, ok := strings.CutSuffix(host, "."+strings.ToLower(suffix))
	if !ok {
		return Address{}, false
	}
	return parseLabel(label)
}

func parseLabel(label string) (Address, bool) {
	label = strings.ToLower(label)
	if label == "" || len(label) > maxLabel {
		return Address{}, false
	}
	for _, c := range []byte(label) {
		if c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return Address{}, false
		}
	}
	a := Address{Endpoint: label}
	if id, ok := strings.CutSuffix(label, readOnlyPoolerSuffix); ok {
		a = Address{Endpoint: id, Target: ReadOnlyPooler}
	} else if id, ok := strings.CutSuffix(label, poolerSuffix); ok {
		a = Address{Endpoint: id, Target: Pooler}
	} else if id, ok := strings.CutSuffix(label, readOnlySuffix); ok {
		a = Address{Endpoint: id, Target: ReadOnly}
	}
	return a, a.Endpoint != "" && a.Endpoint[0] != '-' && label[len(label)-1] != '-'
}

// findEndpoint returns the address of a connection, and the startup parameter "options" without what names it.
//
// A client without server name indication names its endpoint in the options, in one of the forms endpoint=ID,
// endpoint%3DID, "-c endpoint=ID" and "--endpoint=ID".
func findEndpoint(host, suffix, options string) (Address, string, error) {
	named, rest, err := cutEndpoint(options)
	if err != nil {
		return Address{}, "", err
	}
	byHost, ok := ParseHost(host, suffix)
	switch {
	case named == "" && !ok:
		return Address{}, "", fmt.Errorf("the connection does not name a database: connect to <id>.%s with a client "+
			"that sends the server's name in TLS, or add options=endpoint%%3D<id>", suffix)
	case named == "":
		return byHost, rest, nil
	}
	byOption, valid := parseLabel(named)
	if !valid {
		return Address{}, "", errors.New("the option endpoint is not the id of a database")
	}
	if ok && byOption != byHost {
		return Address{}, "", fmt.Errorf("the host name is of database %q and the option endpoint of %q: "+
			"leave out the option", byHost.Endpoint, byOption.Endpoint)
	}
	return byOption, rest, nil
}

// cutEndpoint returns the endpoint that options names, "" if none, and the options without it.
func cutEndpoint(options string) (id, rest string, err error) {
	if !strings.Contains(strings.ToLower(options), "endpoint") {
		return "", options, nil
	}
	words := splitOptions(options)
	var kept []string
	for i := 0; i < len(words); i++ {
		word := words[i]
		if word == "-c" && i+1 < len(words) {
			if v, ok := endpointSetting(words[i+1]); ok {
				i++
				if id, err = one(id, v); err != nil {
					return "", "", err
				}
				continue
			}
			kept = append(kept, word, words[i+1])
			i++
			continue
		}
		setting, ok := strings.CutPrefix(word, "-c")
		if !ok {
			setting = strings.TrimPrefix(word, "--")
		}
		v, ok := endpointSetting(setting)
		if !ok {
			kept = append(kept, word)
			continue
		}
		if id, err = one(id, v); err != nil {
			return "", "", err
		}
	}
	return id, strings.Join(kept, " "), nil
}

func one(have, v string) (string, error) {
	if v == "" {
		return "", errors.New("the option endpoint is empty: write endpoint=<id>")
	}
	if have != "" && have != v {
		return "", errors.New("the options name two different endpoints")
	}
	return v, nil
}

// endpointSetting returns the value of a setting of endpoint.
func endpointSetting(word string) (string, bool) {
	for _, prefix := range []string{"endpoint=", "endpoint%3D", "endpoint%3d"} {
		if v, ok := strings.CutPrefix(word, prefix); ok {
			return v, true
		}
	}
	return "", false
}

// splitOptions splits command-line options at white space as PostgreSQL does. Backslashes, which escape the next
// character, are kept.
func splitOptions(options string) []string {
	var words []string
	var word strings.Builder
	escaped := false
	for _, c := range []byte(options) {
		space := c == ' ' || c >= '\t' && c <= '\r'
		if space && !escaped {
			if word.Len() > 0 {
				words = append(words, word.String())
				word.Reset()
			}
			continue
		}
		word.WriteByte(c)
		escaped = c == '\\' && !escaped
	}
	if word.Len() > 0 {
		words = append(words, word.String())
	}
	return words
}
