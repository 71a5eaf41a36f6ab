// Package config owns every setting of a node and of the command line: its name, default, meaning, where
// its value came from, and whether it can be right.
//
// A setting has one path (log.level). The YAML file nests by it, the flag is --log-level and the
// environment variable PANDASTACK_LOG_LEVEL: none is chosen by hand. A later source wins over an earlier
// one: default, file, environment, flag. An unknown key, a value of the wrong kind and a value out of
// range are all reported, at once. It is the only package that reads the environment, and it is given
// that as text; it knows nothing of what the settings are for.
//
// All functions are pure but for reading files, and may be called from anywhere.
package config

import "time"

// Node is everything that can be set about one node. Every field has a default in its tag and one
// sentence in doc on what it decides.
type Node struct {
	DataDir    string `yaml:"data_dir" path:"file" default:"/var/lib/pandastack" doc:"Directory that holds everything the node keeps."`
	Listen     string `yaml:"listen" default:"127.0.0.1:7700" doc:"Address and port of the API. Port 0 takes a free one."`
	PublicURL  string `yaml:"public_url" default:"" doc:"Base of the addresses given to users, such as https://panda.example.org; empty is http and the listen address."`
	GuestAgent string `yaml:"guest_agent" path:"file" default:"" doc:"The guest agent's program; empty is pandastack-guest beside this one."`

	TLS       TLS       `yaml:"tls"`
	Log       Log       `yaml:"log"`
	VMM       VMM       `yaml:"vmm"`
	Capacity  Capacity  `yaml:"capacity"`
	Network   Network   `yaml:"network"`
	Limits    Limits    `yaml:"limits"`
	Sandbox   Sandbox   `yaml:"sandbox"`
	Objects   Objects   `yaml:"objects"`
	Templates Templates `yaml:"templates"`
	Build     Build     `yaml:"build"`
	Lifecycle Lifecycle `yaml:"lifecycle"`
}

// TLS is a second address of the API, which speaks TLS and HTTP/2.
type TLS struct {
	Listen string `yaml:"listen" default:"" doc:"Address and port of the API over TLS, such as :443; empty is none."`
	Cert   string `yaml:"cert" path:"file" default:"" doc:"File of the certificate and its chain (PEM), for the name of public_url and *.that name; empty makes one, signed by an authority of this node's own."`
	Key    string `yaml:"key" path:"file" default:"" doc:"File of the certificate's key (PEM)."`
}

// Log is what the node says of itself on standard error.
type Log struct {
	Level  string `yaml:"level" default:"info" doc:"debug, info, warn or error."`
	Format string `yaml:"format" default:"text" doc:"text or json."`
}

// VMM is the program that runs the machines.
type VMM struct {
	Driver      string `yaml:"driver" default:"auto" doc:"auto takes Firecracker where a usable one boots a guest, else QEMU; firecracker or qemu says it."`
	Accelerator string `yaml:"accelerator" default:"auto" doc:"auto boots a guest to find out, kvm or tcg says it."`
	QEMU        string `yaml:"qemu" path:"program" default:"" doc:"Path of qemu-system-x86_64 or qemu-system-aarch64; empty looks in PATH."`
	Firecracker string `yaml:"firecracker" path:"program" default:"" doc:"Path of firecracker; empty looks in PATH."`
	Jailer      string `yaml:"jailer" path:"program" default:"" doc:"Path of Firecracker's own jailer, to start it through; empty uses the node's own jail."`
	MoreMemory  int    `yaml:"more_memory_mib" default:"4096" doc:"Memory that can be added to a sandbox beyond its template's, in steps of 128 MiB; with Firecracker only, for templates baked from now on."`
	MoreDisks   int    `yaml:"more_disks" default:"2" doc:"Disks that can be added to a sandbox beyond its template's; with Firecracker only, for templates baked from now on."`
	HugePages   bool   `yaml:"huge_pages" default:"false" doc:"Make the memory of sandboxes that start while it is still coming from the object store of pages of 2 MiB, as far as the host keeps such pages ready (vm.nr_hugepages); with Firecracker 1.17 or newer only. Fewer faults, and no memory shared between sandboxes."`
	Unconfined  bool   `yaml:"unconfined" default:"false" doc:"Run monitors as the node's own user and outside of a jail; for tests of the host only."`
}

// Capacity is what the node may promise to sandboxes.
type Capacity struct {
	MemoryMiB        int `yaml:"memory_mib" default:"0" doc:"Memory for sandboxes; 0 is all but the reserve."`
	MemoryReserveMiB int `yaml:"memory_reserve_mib" default:"1024" doc:"Memory kept for the host."`
	DiskImageGiB     int `yaml:"disk_image_gib" default:"40" doc:"Size of the XFS image made for a data directory that cannot share blocks between files. It is sparse."`
	DiskReserveMiB   int `yaml:"disk_reserve_mib" default:"1024" doc:"Disk space below which nothing new is made."`
}

// Network is the pool of network places.
type Network struct {
	Prefix    string `yaml:"prefix" default:"panda" doc:"Begins the names of everything the node makes in the kernel; two nodes on one machine need different ones."`
	Range     string `yaml:"range" default:"" doc:"IPv4 network used between the host and its machines, such as 10.213.0.0/16; empty takes one that is free."`
	Slots     int    `yaml:"slots" default:"1024" doc:"Sandboxes that may run at once; each has one /30 of the range."`
	Ready     int    `yaml:"ready" default:"8" doc:"Network places prepared ahead."`
	Allow     string `yaml:"allow" default:"" doc:"Private or reserved networks that sandboxes may reach all the same, separated by commas."`
	Resolvers string `yaml:"resolvers" default:"" doc:"Name servers that answer for sandboxes, separated by commas; empty takes the host's."`
	LogEgress bool   `yaml:"log_egress" default:"false" doc:"Log what the rules of sandboxes decide on each name and connection, allowed or not, and where what the kernel refuses was to go (at most 20 packets a second by each rule; the rest is counted)."`
}

// Limits bound what each sandbox, and each machine of a build, takes of the host's devices.
type Limits struct {
	DiskMiB    int `yaml:"disk_mib" default:"0" doc:"MiB that may be read from and written to each disk of a sandbox a second; 0 is no bound."`
	DiskOps    int `yaml:"disk_ops" default:"0" doc:"Requests that each disk of a sandbox answers a second; 0 is no bound."`
	NetworkIn  int `yaml:"network_in_mbit" default:"0" doc:"Mbit a second that may go to a sandbox; 0 is no bound."`
	NetworkOut int `yaml:"network_out_mbit" default:"0" doc:"Mbit a second that may come from a sandbox; 0 is no bound."`
}

// Sandbox holds the defaults of a new sandbox.
type Sandbox struct {
	Template      string        `yaml:"template" default:"base" doc:"Template of a create that names none."`
	TTL           time.Duration `yaml:"ttl" default:"1h" doc:"Delete after so long without use when a create names no ttl; 0s is never."`
	Max           int           `yaml:"max" default:"1000" doc:"Sandboxes that a workspace may have, unless it has its own bound; 0 is no bound."`
	IdleHibernate time.Duration `yaml:"idle_hibernate" default:"0s" doc:"Hibernate a persistent sandbox after so long without use; 0s is never."`
	KeepEndings   time.Duration `yaml:"keep_endings" default:"72h" doc:"How long after its end it is known why a sandbox ended, with its logs and events."`
	Spares        int           `yaml:"spares" default:"2" doc:"Monitors without a guest that wait for creates, one for each template used lately, some 15 MiB each; 0 is none."`
}

// Templates change the recipes that come with the program.
type Templates struct {
	Params  string `yaml:"params" default:"" doc:"Values for parameters of recipes, such as base.suite=trixie, separated by commas."`
	Aliases string `yaml:"aliases" default:"" doc:"Other names of templates, such as ubuntu-24.04=base, separated by commas; they win over the names that recipes give."`
}

// Objects is the object store that hosts share.
type Objects struct {
	URL      string        `yaml:"url" default:"" doc:"Object store for snapshots that move between hosts: file:///path, s3://bucket?region=..., gs://bucket or azblob://container; empty is none."`
	Key      string        `yaml:"key" path:"file" default:"" doc:"File of the master key that encrypts what is stored; made when it is not there, and the same on all hosts that share the store. Empty is objects.key in the data directory."`
	CacheMiB int           `yaml:"cache_mib" default:"4096" doc:"Disk space for parts of the object store that were read. They give way where less than capacity.disk_reserve_mib would be free."`
	Timeout  time.Duration `yaml:"timeout" default:"60s" doc:"How long one request to the object store may take."`
}

// Build is how templates are built.
type Build struct {
	Parallel   int           `yaml:"parallel" default:"2" doc:"Builds that run at once; others wait."`
	Step       time.Duration `yaml:"step" default:"30m" doc:"How long one step of a build may take at most."`
	LayersGiB  int           `yaml:"layers_gib" default:"20" doc:"Disk space that finished steps of one workspace may take; those used least lately go first."`
	MemoryMiB  int           `yaml:"memory_mib" default:"1024" doc:"Memory of the machines in which images are built on; builds on a template have the template's."`
	Insecure   string        `yaml:"insecure" default:"" doc:"Registries, as host:port, that may be reached over plain HTTP, separated by commas."`
	QueueLimit int           `yaml:"queue_limit" default:"20" doc:"Builds of one workspace that may wait or run."`
}

// Registries gives the registries that may be reached over plain HTTP.
func (b Build) Registries() []string { return list(b.Insecure) }

// Lifecycle bounds starting and stopping.
type Lifecycle struct {
	Stop time.Duration `yaml:"stop" default:"60s" doc:"How long a clean stop may take, hibernating sandboxes included."`
}
