package function

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// Place is where the program works.
type Place struct {
	Code     string // fnruntime.Code in a machine
	Bundle   string // fnruntime.Bundle
	Socket   string // fnruntime.Socket; processes of handlers add a number
	State    string // directory of shims and installed packages
	Program  string // this program
	Address  string // of the HTTP server
	Accounts string // file of accounts, which gets one for the handler; "": none
	UID      int    // of the handler and its group; -1: that of this process
}

// handlerUID is the user of handlers in a machine. It belongs to no account of a template.
const handlerUID = 65432

// Machine is the Place of a machine.
var Machine = Place{
	Code: fnruntime.Code, Bundle: fnruntime.Bundle, Socket: fnruntime.Socket, State: "/opt/pandastack/function",
	Program: fnruntime.Program, Address: "127.0.0.1:" + strconv.Itoa(fnruntime.Port), Accounts: "/etc/passwd",
	UID: handlerUID,
}

// maxRequest bounds what the program reads from its standard input.
const maxRequest = 8 << 20

// Main runs one of the verbs build, serve and launch, and returns the exit code of the process.
func (p Place) Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	verb := ""
	if len(args) > 0 {
		verb = args[0]
	}
	var err error
	switch verb {
	case "build":
		out := &events{to: json.NewEncoder(stdout)}
		if err = p.build(ctx, stdin, out); err != nil {
			out.send(fnruntime.Event{Kind: fnruntime.KindError, Error: err.Error()})
			return 1
		}
		return 0
	case "serve":
		var cfg fnruntime.Serve
		if err = json.NewDecoder(io.LimitReader(stdin, maxRequest)).Decode(&cfg); err != nil {
			err = fmt.Errorf("read configuration: %w", err)
			break
		}
		err = p.serve(ctx, cfg, stdout, stderr)
	case "launch":
		err = launch(args[1:])
	default:
		fmt.Fprintln(stderr, "usage: pandastack-runtime build|serve|launch")
		return 2
	}
	if err != nil {
		fmt.Fprintln(stderr, "pandastack-runtime:", err)
		return 1
	}
	return 0
}

// account makes sure that programs can look the handler's user up.
func (p Place) account() error {
	if p.Accounts == "" {
		return nil
	}
	f, err := os.OpenFile(p.Accounts, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // a write says whether it succeeded
	data, err := io.ReadAll(f)
	if err != nil || hasAccount(data, p.UID) {
		return err
	}
	_, err = fmt.Fprintf(f, "function:x:%d:%d::/tmp:/usr/sbin/nologin\n", p.UID, p.UID)
	return err
}
