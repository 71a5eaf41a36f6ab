package dockerfile

import (
	"maps"
	"slices"
	"strings"
)

// platformArgs are the arguments that every text may use without giving them a value.
func platformArgs(platform, target string) map[string]string {
	parts := append(strings.SplitN(platform, "/", 3), "", "")
	if target == "" {
		target = "default"
	}
	all := map[string]string{"TARGETSTAGE": target}
	for _, side := range []string{"BUILD", "TARGET"} {
		all[side+"PLATFORM"] = platform
		all[side+"OS"], all[side+"ARCH"], all[side+"VARIANT"] = parts[0], parts[1], parts[2]
	}
	return all
}

// proxyArgs may be given without being declared, and change no key.
var proxyArgs = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"}

func isProxy(name string) bool { return slices.Contains(proxyArgs, strings.ToUpper(name)) }

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// samePlatform tells whether two texts name one platform, in any of the spellings in use.
func samePlatform(a, b string) bool { return canonical(a) == canonical(b) }

func canonical(platform string) string {
	parts := strings.Split(strings.ToLower(platform), "/")
	if len(parts) == 1 && parts[0] != "linux" {
		parts = []string{"linux", parts[0]}
	}
	if len(parts) > 1 {
		switch parts[1] {
		case "x86_64", "x86-64":
			parts[1] = "amd64"
		case "aarch64":
			parts[1] = "arm64"
		}
	}
	name := strings.Join(parts, "/")
	if name == "linux/arm64/v8" {
		return "linux/arm64"
	}
	return name
}
