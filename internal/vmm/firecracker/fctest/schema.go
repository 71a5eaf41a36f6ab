package fctest

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// field is one member of a request's body.
type field struct {
	name  string
	kind  string // "string", "int", "bool", "object", "list" of objects, "strings"
	must  bool
	minor int         // minor version of release 1.x that introduced it
	patch int         // and its patch version
	inner []field     // members of an object, or of each element of a list
	words []enumValue // allowed strings; nil: any
}

// enumValue is one allowed value of a string.
type enumValue struct {
	text  string
	minor int
}

func words(all ...string) []enumValue {
	var out []enumValue
	for _, w := range all {
		out = append(out, enumValue{text: w})
	}
	return out
}

var bucket = []field{
	{name: "size", kind: "int", must: true},
	{name: "one_time_burst", kind: "int"},
	{name: "refill_time", kind: "int", must: true},
}

var limiter = []field{{name: "bandwidth", kind: "object", inner: bucket}, {name: "ops", kind: "object", inner: bucket}}

var machineFields = []field{
	{
		name: "vcpu_count",
		kind: "int",
		must: true,
	}, {name: "mem_size_mib", kind: "int", must: true}, {name: "smt", kind: "bool"},
	{name: "track_dirty_pages", kind: "bool"}, {name: "cpu_template", kind: "string"},
	{name: "huge_pages", kind: "string", words: append(words("None", "2M"), enumValue{"Transparent", 17})},
}

var schemas = map[string][]field{
	"PUT /boot-source": {
		{name: "kernel_image_path", kind: "string", must: true},
		{name: "initrd_path", kind: "string"},
		{name: "boot_args", kind: "string"},
	},
	"PUT /machine-config": machineFields,
	"PUT /drives/": {
		{
			name: "drive_id",
			kind: "string",
			must: true,
		}, {name: "path_on_host", kind: "string"}, {name: "is_root_device", kind: "bool", must: true},
		{
			name: "is_read_only",
			kind: "bool",
		}, {name: "partuuid", kind: "string"},
		{name: "cache_type", kind: "string", words: words("Unsafe", "Writeback")},
		{name: "io_engine", kind: "string", words: words("Sync", "Async")}, {name: "socket", kind: "string"},
		{name: "rate_limiter", kind: "object", inner: limiter},
	},
	"PATCH /drives/": {
		{
			name: "drive_id",
			kind: "string",
			must: true,
		}, {name: "path_on_host", kind: "string"}, {name: "rate_limiter", kind: "object", inner: limiter},
	},
	"PUT /network-interfaces/": {
		{
			name: "iface_id",
			kind: "string",
			must: true,
		}, {name: "host_dev_name", kind: "string", must: true}, {name: "guest_mac", kind: "string"},
		{name: "mtu", kind: "int", minor: 16},
		{
			name:  "rx_rate_limiter",
			kind:  "object",
			inner: limiter,
		}, {name: "tx_rate_limiter", kind: "object", inner: limiter},
	},
	"PATCH /network-interfaces/": {
		{name: "iface_id", kind: "string", must: true},
		{
			name:  "rx_rate_limiter",
			kind:  "object",
			inner: limiter,
		}, {name: "tx_rate_limiter", kind: "object", inner: limiter},
	},
	"PUT /mmds/config": {
		{
			name:  "version",
			kind:  "string",
			words: words("V1", "V2"),
		}, {name: "network_interfaces", kind: "strings", must: true},
		{name: "ipv4_address", kind: "string"}, {name: "imds_compat", kind: "bool", minor: 13},
	},
	"PUT /vsock": {
		{name: "guest_cid", kind: "int", must: true},
		{name: "uds_path", kind: "string", must: true},
		{name: "vsock_id", kind: "string"},
	},
	"PUT /entropy": {{name: "rate_limiter", kind: "object", inner: limiter}},
	"PUT /balloon": {
		{
			name: "amount_mib",
			kind: "int",
			must: true,
		}, {name: "deflate_on_oom", kind: "bool", must: true}, {name: "stats_polling_interval_s", kind: "int"},
		{name: "free_page_hinting", kind: "bool", minor: 14}, {name: "free_page_reporting", kind: "bool", minor: 14},
	},
	"PATCH /balloon": {{name: "amount_mib", kind: "int", must: true}},
	"PUT /hotplug/memory": {
		{
			name:  "total_size_mib",
			kind:  "int",
			must:  true,
			minor: 14,
		}, {name: "slot_size_mib", kind: "int"}, {name: "block_size_mib", kind: "int"},
	},
	"PATCH /hotplug/memory": {{name: "requested_size_mib", kind: "int", must: true, minor: 14}},
	"PUT /actions": {
		{
			name:  "action_type",
			kind:  "string",
			must:  true,
			words: words("InstanceStart", "FlushMetrics", "SendCtrlAltDel"),
		},
	},
	"PATCH /vm": {{name: "state", kind: "string", must: true, words: words("Paused", "Resumed")}},
	"PUT /snapshot/create": {
		{
			name:  "snapshot_type",
			kind:  "string",
			words: words("Full", "Diff"),
		}, {name: "snapshot_path", kind: "string", must: true},
		{name: "mem_file_path", kind: "string", must: true},
	},
	"PUT /snapshot/load": {
		{name: "snapshot_path", kind: "string", must: true}, {name: "mem_file_path", kind: "string"},
		{name: "mem_backend", kind: "object", inner: []field{
			{
				name:  "backend_type",
				kind:  "string",
				must:  true,
				words: words("File", "Uffd"),
			}, {name: "backend_path", kind: "string", must: true},
		}},
		{
			name: "enable_diff_snapshots",
			kind: "bool",
		}, {name: "track_dirty_pages", kind: "bool", minor: 13}, {name: "resume_vm", kind: "bool"},
		{name: "network_overrides", kind: "list", minor: 12, inner: []field{
			{name: "iface_id", kind: "string", must: true}, {name: "host_dev_name", kind: "string", must: true},
		}},
		{
			name:  "vsock_override",
			kind:  "object",
			minor: 16,
			inner: []field{{name: "uds_path", kind: "string", must: true}},
		},
		{name: "clock_realtime", kind: "bool", minor: 15, patch: 1},
		{name: "huge_pages", kind: "string", minor: 17, words: words("Snapshot", "None", "Transparent", "2M")},
	},
	"PUT /logger": {
		{name: "log_path", kind: "string"}, {name: "level", kind: "string"}, {name: "show_level", kind: "bool"},
		{name: "show_log_origin", kind: "bool"}, {name: "module", kind: "string"},
	},
}

// check validates a body for a release. It refuses unknown members, missing members, wrong types
// and unknown values.
func check(v fcapi.Version, fields []field, data []byte) error {
	var have map[string]json.RawMessage
	if err := json.Unmarshal(data, &have); err != nil {
		return fmt.Errorf("an error occurred when deserializing the json body of a request: %w", err)
	}
	known := map[string]bool{}
	for _, f := range fields {
		if v.Compare(fcapi.Version{Major: 1, Minor: f.minor, Patch: f.patch}) < 0 {
			continue
		}
		known[f.name] = true
		value, there := have[f.name]
		if there && string(value) == "null" && !f.must {
			continue
		}
		if !there {
			if f.must {
				return fmt.Errorf("missing field `%s`", f.name)
			}
			continue
		}
		if err := f.check(v, value); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	for name := range have {
		if !known[name] {
			return fmt.Errorf("unknown field `%s`", name)
		}
	}
	return nil
}

func (f field) check(v fcapi.Version, data []byte) error {
	switch f.kind {
	case "object":
		return check(v, f.inner, data)
	case "list":
		var all []json.RawMessage
		if err := json.Unmarshal(data, &all); err != nil {
			return err
		}
		for _, one := range all {
			if err := check(v, f.inner, one); err != nil {
				return err
			}
		}
		return nil
	case "strings":
		var all []string
		return json.Unmarshal(data, &all)
	case "int":
		var n uint64
		return json.Unmarshal(data, &n)
	case "bool":
		var b bool
		return json.Unmarshal(data, &b)
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	fits := func(w enumValue) bool { return w.text == s && v.AtLeast(1, w.minor) }
	if f.words != nil && !slices.ContainsFunc(f.words, fits) {
		return fmt.Errorf("unknown variant `%s`", s)
	}
	return nil
}
