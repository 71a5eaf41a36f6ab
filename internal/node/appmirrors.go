package node

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/control/app/builder"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/os/clientconfig"
)

// machineBundle is the file in machines with all certificates that are trusted there.
const machineBundle = "/etc/ssl/certs/ca-certificates.crt"

// appMirrors makes of the settings, and of the host's own clients if the settings say so, what builds of apps use.
func appMirrors(ctx context.Context, set config.AppMirrors, host clientconfig.Host) (m builder.Mirrors, err error) {
	var found clientconfig.Config
	if set.FromHost {
		if found, err = host.Read(ctx); err != nil {
			return m, fmt.Errorf("apps.mirrors.from_host: %w", err)
		}
	}
	m.Certificates = found.Certificates
	if set.Certificates != "" {
		data, err := os.ReadFile(set.Certificates)
		if err != nil {
			return m, fmt.Errorf("apps.mirrors.certificates: %w", err)
		}
		if !strings.Contains(string(data), "-----BEGIN CERTIFICATE-----") {
			return m, fmt.Errorf("apps.mirrors.certificates: %s has no certificate in PEM", set.Certificates)
		}
		m.Certificates += string(data)
	}
	m.Hosts, m.Debian, m.Env = append(set.HostLines(), found.Hosts...), set.Debian, map[string]string{}
	m.Files = mirrorFiles(set)
	add := func(value string, names ...string) {
		for _, name := range names {
			if value != "" {
				m.Env[name] = value
			}
		}
	}
	pypi := cmp.Or(set.PyPI, found.PyPI)
	add(cmp.Or(set.NPM, found.NPM), "NPM_CONFIG_REGISTRY", "COREPACK_NPM_REGISTRY", "YARN_NPM_REGISTRY_SERVER")
	add(pypi, "PIP_INDEX_URL", "UV_DEFAULT_INDEX")
	add(cmp.Or(set.Go, found.Go), "GOPROXY")
	add(strings.TrimSuffix(set.Maven, "/"), "MVNW_REPOURL")
	add(set.Proxy, "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
	add(set.NoProxy, "NO_PROXY", "no_proxy")
	if m.Certificates != "" {
		add(machineBundle, "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE",
			"CARGO_HTTP_CAINFO")
	}
	return m, nil
}

// mirrorFiles returns the configuration of package managers that take no mirror from their environment. Cargo looks for
// its own in the directories above that of the app.
func mirrorFiles(set config.AppMirrors) map[string]string {
	files := map[string]string{}
	if set.Cargo != "" {
		files["/.cargo/config.toml"] = "[source.crates-io]\nreplace-with = \"mirror\"\n\n" +
			"[source.mirror]\nregistry = " + strconv.Quote("sparse+"+strings.TrimSuffix(set.Cargo, "/")+"/") + "\n"
	}
	if set.Maven != "" {
		var at strings.Builder
		_ = xml.EscapeText(&at, []byte(set.Maven)) // a strings.Builder takes everything
		files["/root/.m2/settings.xml"] = "<settings><mirrors><mirror><id>mirror</id>" +
			"<mirrorOf>central</mirrorOf><url>" +
			at.String() + "</url></mirror></mirrors></settings>\n"
	}
	return files
}
