package dockerfile

import (
	"maps"
	"slices"
	"strings"
)

// platformArgs returns the predefined arguments of every Dockerfile.
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

// proxyArgs are arguments that need no declaration and are not part of keys.
var proxyArgs = []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"}

func isProxy(name string) bool { return slices.Contains(proxyArgs, strings.ToUpper(name)) }

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// samePlatform reports whether two texts name the same platform, in any of the usual spellings.
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
