package service

import (
	"fmt"
	"strings"
)

// unitName is the name of the unit and of its file.
const unitName = "pandastack.service"

// stopCommand is in the line ExecStop of the unit.
const stopCommand = " service stop "

// unit is what a unit file is made from.
type unit struct {
	Program  string // path of the program
	Config   string // path of the configuration file; "" is none
	DataDir  string // "" is the default
	StopTime int    // time limit of a stop in seconds
}

// text returns the unit file.
//
// KillMode=process: systemd must not kill machines together with the node. The watchdog restarts a node whose API does
// not respond. ExecStop tells a stop of the service, after which machines run on, from a shutdown of the system.
func (u unit) text() string {
	args := []string{u.Program, "up", "--lifecycle-keep-running"}
	if u.Config != "" {
		args = append(args, "--config", u.Config)
	}
	if u.DataDir != "" {
		args = append(args, "--data-dir", u.DataDir)
	}
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = quote(a)
	}
	return fmt.Sprintf(`[Unit]
Description=PandaStack
Documentation=man:pandastack(1)
After=network-online.target local-fs.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=%s
ExecStop=%s%s--main-pid $MAINPID
KillMode=process
Restart=always
RestartSec=1
WatchdogSec=60
TimeoutStartSec=infinity
TimeoutStopSec=%d
LimitNOFILE=1048576
TasksMax=infinity
OOMPolicy=continue

[Install]
WantedBy=multi-user.target
`, strings.Join(quoted, " "), quote(u.Program), stopCommand, u.StopTime)
}

// quote quotes an argument of a command line in a unit file, as systemd.service(5) describes it.
func quote(arg string) string {
	arg = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$", "\n", `\n`, "\t", `\t`).Replace(arg)
	if arg == "" || strings.ContainsAny(arg, " '\"\\;") {
		return `"` + arg + `"`
	}
	return arg
}
