package builder

import "github.com/pandastack/pandastack/internal/contract/buildevent"

// Mirrors says how the machines of builds reach what they download. It has no credentials that users may not see: every
// build can read all of it.
type Mirrors struct {
	Certificates string            // PEM of authorities to trust, beside those of the template
	Hosts        []string          // lines of /etc/hosts
	Env          map[string]string // of every command of a build, such as NPM_CONFIG_REGISTRY
	Files        map[string]string // configuration of package managers, by absolute path
	Debian       string            // URL of an archive in place of the distribution's
}

// bundle is the file with all certificates that programs in a machine trust.
const bundle = "/etc/ssl/certs/ca-certificates.crt"

// machine is what is set up in the first layer.
func (m Mirrors) machine() *buildevent.Mirrors {
	return &buildevent.Mirrors{Certificates: m.Certificates, Hosts: m.Hosts, Files: m.Files, Debian: m.Debian}
}

// runtime is what the running app needs to trust what its build trusted: Node.js and Python have certificates of
// their own.
func (m Mirrors) runtime() map[string]string {
	if m.Certificates == "" {
		return nil
	}
	return map[string]string{"NODE_EXTRA_CA_CERTS": bundle, "REQUESTS_CA_BUNDLE": bundle, "SSL_CERT_FILE": bundle}
}
