package config

// settingDocs describes each setting, by path, in one or two sentences for the help and the reference page.
var settingDocs = map[string]string{
	"data_dir": "Directory that holds everything the node keeps.",
	"listen":   "Address and port of the API. Port 0 takes a free one.",
	"public_url": "Base of the URLs given to users, such as https://panda.example.org; " +
		"empty is http and the listen address.",
	"guest_agent": "Path of the guest agent; empty is pandastack-guest in the directory of this program.",

	"tls.listen": "Address and port of the API over TLS, such as :443; empty disables TLS.",
	"preview.domain": "Domain of the host names of sandboxes' ports, <port>-<id>.<domain>, with a port if clients " +
		"need another than the API's; every name below it must lead to this node. Use a registrable domain that " +
		"serves nothing else. Empty is the host of public_url, or localhost.",
	"tls.cert": "File with the certificate and its chain (PEM), for the host name of public_url and all names " +
		"below it and below preview.domain; " +
		"empty creates one, signed by this node's own authority.",
	"tls.key": "File with the private key of the certificate (PEM).",

	"trusted_proxies.networks": "Networks of the proxies in front of the node, separated by commas. The address of a " +
		"client " +
		"is taken from their header, for the audit log and for limits by address; headers of others are ignored.",
	"trusted_proxies.header": "The header that these proxies set: x-forwarded-for or forwarded. " +
		"They must replace or extend it in every request.",

	"rate_limit.key_per_s": "Requests a second to the APIs with one key, and twice as many at once; 0 is unlimited.",
	"rate_limit.address_per_s": "Requests a second to the APIs from one address (IPv6: one /64 network), and twice " +
		"as many " +
		"at once; 0 is unlimited.",
	"rate_limit.port_per_s": "Requests a second to one port of one sandbox, from all clients, and twice as many at " +
		"once; what a stream or a WebSocket carries is not counted. 0 is unlimited.",
	"rate_limit.port_address_per_s": "Requests a second to ports of sandboxes, with E2B's agent and code " +
		"interpreter, from one address (IPv6: one /64 network), and twice as many at once; 0 is unlimited.",
	"rate_limit.failures_per_min": "Failed authentications a minute from one address. " +
		"After that only keys that were used lately work from there; 0 is unlimited.",
	"rate_limit.max_wait": "How long a request may wait for its turn while the node serves as many as it can. " +
		"One that would wait longer is refused at once with rate_limited and Retry-After; " +
		"with 0s nothing waits or is refused.",

	"audit.file_reads": "Record reads of files of sandboxes, by the path: each file once a minute for one caller.",
	"audit.entries_per_s": "Entries of the audit log a second for one workspace, and 20 times as many at once; " +
		"refused " +
		"calls have a tenth of it for themselves. Entries over it are dropped and counted; 0 is unlimited.",
	"audit.retention": "Age at which entries of the audit log are removed; 0s is never.",
	"audit.max_entries": "Entries of the audit log. If there are more, the oldest of the workspaces with the most " +
		"are " +
		"removed; 0 is unlimited.",

	"log.level":  "debug, info, warn or error.",
	"log.format": "text or json.",

	"vmm.driver": "auto uses Firecracker if a usable one boots a guest, and QEMU otherwise; " +
		"firecracker or qemu sets the driver.",
	"vmm.accelerator": "auto boots a guest to find out; kvm or tcg sets the accelerator of QEMU.",
	"vmm.qemu":        "Path of qemu-system-x86_64 or qemu-system-aarch64; empty searches PATH.",
	"vmm.firecracker": "Path of firecracker; empty searches PATH.",
	"vmm.jailer": "Path of Firecracker's jailer, if Firecracker is to be started through it; " +
		"empty uses the node's own jail.",
	"vmm.hotplug_memory_mib": "Memory that can be added to a sandbox beyond that of its template, in steps of 128 " +
		"MiB. " +
		"Firecracker only; applies to templates baked from now on.",
	"vmm.hotplug_disks": "Disks that can be added to a sandbox beyond those of its template. " +
		"Firecracker only; applies to templates baked from now on.",
	"vmm.huge_pages": "Use 2 MiB pages for sandboxes whose memory is still being downloaded from the object store, " +
		"as far " +
		"as the host has such pages reserved (vm.nr_hugepages). Firecracker 1.17 or newer only. This takes fewer " +
		"page " +
		"faults, but sandboxes do not share memory.",
	"vmm.seccomp_allow": "Names of system calls, separated by commas, that QEMU may make in its jail in addition to " +
		"those that PandaStack knows it needs. For other versions of QEMU; the node's log names refused calls.",
	"vmm.seccomp_mode": "enforce refuses system calls of QEMU that are not allowed; record logs and allows those " +
		"that do not serve attacks, to find out what another version of QEMU needs.",
	"vmm.disable_jail": "Run monitors as the node's own user and outside the jail. For tests of the host only.",

	"capacity.memory_mib":         "Memory for sandboxes; 0 is all but capacity.memory_reserve_mib.",
	"capacity.memory_reserve_mib": "Memory kept for the host.",
	"capacity.node_memory_mib": "Memory that the node's own process aims to stay below. Half of it is the budget of " +
		"what requests buffer, of which one workspace gets at most half. 0 is capacity.memory_reserve_mib, but at " +
		"least 256 and at most half of the host's memory.",
	"capacity.streams": "Requests to guests, processes that are followed, terminals, watchers and connections to " +
		"ports that may be open at once. One workspace gets at most half of them.",
	"capacity.connections": "Connections to the API that may be open at once. One address gets at most half of them.",
	"capacity.memory_overcommit_percent": "Memory that the sandboxes that run may be promised together, in percent " +
		"of what is there for them; a sandbox is promised all of its memory and uses what it writes. " +
		"100 promises nothing twice.",
	"capacity.memory_pressure_percent": "Part of the last 10 s in which programs waited for memory, in percent, " +
		"from which on nothing is started and idle sandboxes that may be hibernated are; 0 is never.",
	"capacity.disk_image_gib": "Size of the XFS image that holds the data directory if its file system cannot share " +
		"blocks between files (reflink). The image is sparse.",
	"capacity.disk_reserve_mib": "Free disk space below which the node creates nothing new. Below half of it, " +
		"sandboxes whose disks grow are paused until it is free again.",
	"capacity.disk_overcommit": "How many times the size of the data directory's file system the disks of all " +
		"sandboxes together may have; 0 is no bound. Disks take space only for what is written to them and share the " +
		"blocks of their template, so most never take their size.",

	"network.prefix": "Prefix of the names of all kernel objects that the node makes. " +
		"Two nodes on one machine need different prefixes.",
	"network.cidr": "IPv4 network between the host and its machines, such as 10.213.0.0/16; empty takes a " +
		"free one.",
	"network.slots":           "Sandboxes that may run at the same time. Each takes one /30 of network.cidr.",
	"network.prewarmed_slots": "Network slots prepared in advance.",
	"network.allow":           "Private or reserved networks that sandboxes may reach, separated by commas.",
	"network.resolvers":       "Name servers for sandboxes, separated by commas; empty takes those of the host.",
	"network.log_egress": "Log the decisions of egress rules on each name and connection, and the destinations of " +
		"packets " +
		"that the kernel drops (at most 20 packets a second for each rule; the others are counted).",

	"limits.disk_mib_per_s": "MiB a second that a sandbox may read from and write to each of its disks; 0 is " +
		"unlimited.",
	"limits.disk_iops": "Reads and writes a second that a sandbox may send to each of its disks; 0 is " +
		"unlimited.",
	"limits.network_in_mbit":  "Mbit a second that a sandbox may receive; 0 is unlimited.",
	"limits.network_out_mbit": "Mbit a second that a sandbox may send; 0 is unlimited.",
	"limits.connections": "Connections that a sandbox may have opened at once; 0 is unlimited. The kernel drops what " +
		"goes beyond.",
	"limits.contexts": "Code contexts that a sandbox may have when one more is started; 0 is unlimited.",
	"limits.new_connections_per_s": "Connections that a sandbox may open a second, after a burst of five times as " +
		"many; 0 is unlimited.",

	"sandbox.template": "Template of a sandbox whose create request names none.",
	"sandbox.ttl": "Time without use after which a sandbox is deleted, if its create request sets no ttl; " +
		"0s is never.",
	"sandbox.idle_hibernate": "Time without use after which a persistent sandbox is hibernated; 0s is never.",
	"sandbox.guest_timeout": "How long the guest or the monitor of a sandbox may take to stop or continue for a " +
		"pause, fork, snapshot or hibernation, before that fails.",
	"sandbox.tombstone_retention": "How long the node keeps why a sandbox ended, with its logs and events. " +
		"24h is the minimum.",
	"sandbox.warm_monitors": "Monitors started in advance without a guest, one for each recently used template. " +
		"Each takes about 15 MiB; 0 is none.",

	"volume.size_mib": "Size of a volume whose creator names none, as all of E2B's do.",
	"volume.oversubscription_percent": "Sum of the sizes of all volumes, in percent of the data directory's file " +
		"system without capacity.disk_reserve_mib. Volumes take space only for what is written to them; 0 is no bound.",
	"volume.helper_template": "Template of the hidden machines through which files of volumes are read and written " +
		"while no sandbox has them. It needs sh, tar, chown and chmod. No file system of a volume is read on the host.",
	"volume.helper_idle": "Time without use after which such a machine ends.",
	"volume.helpers":     "Such machines that a workspace may have at once.",
	"quota.sandboxes": "Sandboxes that a workspace may have, in any state. This and the other quotas are for " +
		"workspaces without their own ('pandastack workspace quota'); 0 is unlimited.",
	"quota.vcpus": "Processors that the sandboxes of a workspace may have together while they are not hibernated; " +
		"0 is unlimited.",
	"quota.memory_mib": "Memory that the sandboxes of a workspace may have together while they are not hibernated; " +
		"0 is unlimited, as far as the host has memory.",
	"quota.disk_mib": "Sum of the sizes of a workspace's disks and of the data of its snapshots and built templates. " +
		"Disks take less than their size until they are full; 0 is unlimited.",
	"quota.disk_used_mib": "Disk space that the sandboxes and builds of a workspace may take together, without the " +
		"blocks that they share with templates and each other. Beyond it nothing new is made, and sandboxes that " +
		"grow are paused; 0 is unlimited.",
	"quota.snapshots": "Snapshots that a workspace may have; 0 is unlimited.",
	"quota.snapshot_mib": "Data of the snapshots of a workspace. A snapshot that is being taken counts with the " +
		"memory and disk of its sandbox; 0 is unlimited.",
	"quota.upload_mib": "Disk space for a workspace's uploaded inputs of builds and for layers of images that its " +
		"builds are downloading; 0 is unlimited.",
	"quota.templates": "Templates that a workspace may have built; 0 is unlimited.",
	"quota.builds":    "Builds of a workspace that may wait or run; 0 is unlimited.",
	"databases.listen": "Address and port of the databases' PostgreSQL protocol, such as :5432; empty disables " +
		"databases.",
	"databases.guests": "Whether guests reach the databases of this server, at port 5432 of their gateway, " +
		"192.168.241.1, unless their network is off. They log in as other clients do.",
	"databases.port": "Port of the connection URLs given to users; 0 is that of databases.listen.",
	"databases.suffix": "Domain of the databases' host names, <id>.<suffix>. Every name below it must lead to this " +
		"node, and the certificate of tls.cert must be for *.<suffix>. Empty is db. and the host of public_url, or " +
		"db.localhost.",
	"databases.template": "Template of databases whose creator names none.",
	"databases.idle": "Time without sessions and queries after which a database is suspended if its creator names " +
		"none.",
	"databases.storage_max_mib": "Size up to which the storage of a database whose creator names none grows by itself.",
	"databases.backup_days":     "Days of the past that a database can be restored to.",
	"databases.base_backups":    "Base backups of a database that are kept although restores to those days need fewer.",
	"databases.base_interval":   "Time between base backups of a database. Restores read the log since the last one.",
	"databases.spool_mib": "Log of one database that may wait on the disk of the host for the object store. Then " +
		"nothing more is received; synchronous commits wait.",
	"ssh.listen": "Address and port of the SSH gateway to sandboxes, such as :2222; empty disables it.",
	"ssh.public": "Host name and port of the SSH gateway for users, such as ssh.example.com:22; if empty, the host " +
		"of public_url and the port of ssh.listen.",
	"schedules.parallel":      "Runs of schedules at a time.",
	"schedules.per_workspace": "Runs of schedules of one workspace at a time.",
	"schedules.allow_networks": "Networks in CIDR notation, separated by commas, that requests of schedules may " +
		"reach although they are not public, such as 10.1.0.0/16.",
	"functions.suffix": "Domain of the host names of functions, fn-<id>.<suffix>; a wildcard record must lead to the " +
		"node. Empty is fn. and the host of public_url, or fn.localhost.",
	"functions.template": "Template of functions whose creators name none.",
	"functions.concurrency": "Invocations of functions that are under way at once; others wait for their turn, which " +
		"workspaces take fairly.",
	"functions.wait":           "Time that an invocation waits for its turn before it is refused with the status 429.",
	"functions.builds":         "Versions of functions that are built at once.",
	"functions.build_timeout":  "Time limit of the build of a version of a function.",
	"databases.rehearsal_hour": "Hour of the day, UTC, of the nightly rehearsal of a restore, 0 to 23.",
	"databases.replica_lag": "Read replicas that are further behind their primary get no new connections; at " +
		"least 1s.",

	"quota.volumes": "Volumes that a workspace may have; 0 is unlimited.",
	"quota.volume_mib": "Sum of the sizes of a workspace's volumes. They take space only for what is written to " +
		"them; 0 is unlimited.",
	"quota.volume_snapshots": "Snapshots of volumes that a workspace may have; 0 is unlimited.",
	"apps.suffix": "Domain of the apps' host names, <name>.<suffix>. Every name below it must lead to this server. " +
		"Empty: app. and the host of public_url, or app.localhost.",
	"apps.hold": "How long a request waits for an app that sleeps to wake.",
	"apps.response_timeout": "How long an app may take until its response begins, after the last byte of the " +
		"request.",
	"apps.body_mib": "Size of the body of a request to an app; 0 is unlimited.",
	"apps.quiet_agents": "Texts, separated by commas, in the header User-Agent of robots and probes: their requests " +
		"wake no app. HEAD requests and prefetches do not either.",
	"apps.wakes_per_min": "Wakes of one app in a minute; 0 is unlimited.",
	"apps.network_wakes_per_min": "Wakes of apps that one address, or network of IPv6, causes in a minute; 0 is " +
		"unlimited.",
	"apps.https_redirect": "Redirect requests for apps to https, if public_url has that scheme.",
	"apps.hsts": "Time of the header Strict-Transport-Security in responses of apps over TLS; 0 sends " +
		"none.",
	"acme.directory": "URL of the authority that issues certificates for the custom domains of apps, such as " +
		"https://acme-v02.api.letsencrypt.org/directory; setting it accepts its terms. Needs tls.listen, and that " +
		"port 443 of the domains leads there. Empty: no certificates are issued.",
	"acme.names": "Host names of the node itself, separated by commas, that get certificates from the authority, " +
		"too, such as that of public_url; each must lead to this node. Names of previews need a wildcard: tls.cert.",
	"acme.email": "Address that the authority sends warnings to.",
	"acme.key_id": "Key id of an account with the authority that its accounts are bound to; empty if it " +
		"needs none.",
	"acme.mac_key": "File with the MAC key of acme.key_id, in base64 for URLs.",
	"acme.ca": "File with the certificate (PEM) that vouches for the authority's server; empty: those " +
		"of the system.",
	"apps.template":       "Template of the machines in which apps are built, for apps that name none.",
	"apps.build_timeout":  "Limit of the build of a deployment.",
	"apps.upload_mib":     "Size of an archive of files that is uploaded to be deployed.",
	"apps.repository_mib": "Size of the volume with the repository of an app that is pushed to.",
	"apps.push_mib":       "What one git push to an app may send.",
	"apps.mirrors.from_host": "Whether builds of apps use the registries of npm, pip and Go that this machine uses, " +
		"trust the certificate authorities that its administrator added, and know the names of other hosts in its " +
		"/etc/hosts. Credentials are left out.",
	"apps.mirrors.certificates": "File with certificate authorities (PEM) that apps and their builds trust too.",
	"apps.mirrors.npm":          "Registry of npm for builds of apps; empty is the public one.",
	"apps.mirrors.pypi":         "Index of Python packages for builds of apps; empty is the public one.",
	"apps.mirrors.go":           "GOPROXY of builds of apps; empty is the public one.",
	"apps.mirrors.cargo":        "Sparse index of Cargo for builds of apps; empty is that of crates.io.",
	"apps.mirrors.maven":        "Repository in place of Maven Central for builds of apps; empty is the public one.",
	"apps.mirrors.debian":       "Archive of Debian for builds of apps; empty is the public one.",
	"apps.mirrors.proxy":        "HTTP proxy of builds of apps, which read it. Private addresses need network.allow.",
	"apps.mirrors.no_proxy":     "Names that builds of apps reach without the proxy, separated by commas.",
	"apps.mirrors.hosts":        "Names for builds, such as 198.51.100.7 npm.example.com, separated by commas.",
	"apps.idle":                 "Time without requests after which an app sleeps if its creator names none.",
	"apps.keep":                 "Ended deployments of an app that are kept for rollbacks.",
	"apps.deployments":          "Deployments of apps that are built or started at once.",
	"apps.github_api": "Base of GitHub's API, to which deployments are reported; of GitHub Enterprise Server it is " +
		"https://<host>/api/v3/.",
	"apps.github_host": "Host of the repositories whose deployments are reported there.",
	"quota.databases": "Databases that a workspace may have; 0 is unlimited. The machine and the volume of each also " +
		"count as a sandbox and a volume.",
	"quota.apps": "Apps that a workspace may have; 0 is unlimited. " +
		"Their machines and snapshots also count as those.",
	"quota.schedules": "Schedules that a workspace may have; 0 is unlimited.",
	"quota.functions": "Functions that a workspace may have; 0 is unlimited. " +
		"Their machines and snapshots also count as those.",
	"quota.egress_mbit": "Mbit a second that each sandbox of a workspace may send, unless limits.network_out_mbit is " +
		"lower; 0 is unlimited.",
	"quota.connections": "Connections that each sandbox of a workspace may have opened at once, unless " +
		"limits.connections is lower; 0 is unlimited.",
	"quota.new_connections_per_s": "Connections that each sandbox of a workspace may open a second, unless " +
		"limits.new_connections_per_s is lower; 0 is unlimited.",

	"templates.rebake": "Bake templates again in the background, at the start of the node, that a new guest agent, " +
		"kernel, monitor or recipe made stale; without it the next create does.",
	"object_store.url": "Object store for snapshots that move between hosts, backups of volumes and " +
		"code of functions: " +
		"file:///path, s3://bucket?region=..., gs://bucket or azblob://container; empty is none.",
	"object_store.key": "File with the master key that encrypts stored objects. It is created if it does not exist, " +
		"and " +
		"must be the same on all hosts that share the store. Empty is objects.key in the data directory.",
	"object_store.cache_mib": "Disk space for cached parts of the object store. " +
		"The cache shrinks when less than capacity.disk_reserve_mib would be free.",
	"object_store.timeout": "Time limit of one request to the object store.",

	"backup.url": "Where backups of the node go: a URL as for object_store.url, or the absolute path of a directory; " +
		"empty is node-backups/ in the object store.",
	"backup.passphrase_file": "File with the passphrase of backups of the node, of 12 bytes or more, readable by " +
		"its owner alone (mode 0600). Without the passphrase no backup can be read; keep a copy elsewhere.",
	"backup.every": "Time between backups that the node makes by itself; 0s for none.",
	"backup.keep":  "Backups of this node that are kept after it has made another; 0 keeps all.",

	"templates.params": "Values of recipe parameters, such as base.suite=trixie, separated by commas.",
	"templates.aliases": "Other names of templates, such as ubuntu-24.04=base, separated by commas; " +
		"they override the aliases in recipes.",

	"build.parallel":     "Builds that run at the same time; others wait.",
	"build.step_timeout": "Time limit of one step of a build.",
	"build.layers_gib": "Disk space for cached build steps of one workspace; " +
		"the least recently used are removed first.",
	"build.memory_mib": "Memory of the machines that build images; " +
		"a build based on a template has the memory of the template.",
	"build.insecure_registries": "Registries, as host:port, that builds may reach over plain HTTP and at private " +
		"addresses, separated by commas.",
	"build.allow_networks": "Private or reserved networks, such as 10.1.0.0/16, in which builds may reach " +
		"registries, separated by commas. Metadata services of clouds stay closed.",

	"lifecycle.keep_running": "Leave sandboxes running when the node is terminated (SIGTERM) or fails, for the next " +
		"start to adopt. An interrupt (SIGINT) hibernates or deletes them all the same.",
	"lifecycle.shutdown_timeout": "Time limit of a clean shutdown, including the hibernation of sandboxes.",
}
