package appspec

import (
	"slices"
	"strings"
)

// common are the first labels that servers have for themselves.
var common = []string{
	"admin", "api", "app", "apps", "auth", "console", "dashboard", "db", "git", "login", "mail", "registry", "status",
	"www",
}

// Reserved reports whether an app of a name would have a host name that is the server's: one of own, one that a name
// of own is below, or, if the apps' suffix is no domain of their own, one that is common for servers.
func Reserved(name, suffix string, own []string) bool {
	host, shared := name+"."+suffix, false
	for _, o := range own {
		o = strings.ToLower(strings.TrimSuffix(o, "."))
		if o == host || strings.HasSuffix(o, "."+host) {
			return true
		}
		shared = shared || o != "" && (o == suffix || strings.HasSuffix(o, "."+suffix))
	}
	return shared && slices.Contains(common, name)
}
