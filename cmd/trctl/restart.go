package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// A GPU that a fault has spoiled answers only to a new process, and only a new process is
// rid of a step that hangs. Serving goes on
// by putting a new one in the place of this one: the same arguments, the same
// process id for whoever supervises it. It does so a few times, then exits.
const (
	restartsEnv = "TRCTL_GPU_RESTARTS"
	maxRestarts = 3
	// calmAfter is how long a process must have served for earlier restarts to count no more.
	calmAfter = 10 * time.Minute
)

// restartsBefore is how many processes in a row have ended so before this one, by what it found in restartsEnv.
func restartsBefore(set string) int {
	done, err := strconv.Atoi(set)
	if err != nil {
		return 0
	}
	return max(done, 0)
}

// nextRestart says whether a process that has served for a while may be replaced,
// and what the next one finds in restartsEnv. set is what this one found there.
func nextRestart(set string, served time.Duration) (next string, ok bool) {
	done := restartsBefore(set)
	if served >= calmAfter {
		done = 0
	}
	return strconv.Itoa(done + 1), done < maxRestarts
}

// serving says that a command line serves until it is stopped.
func serving(args []string) bool {
	return len(args) > 1 && args[1] == "serve" || len(args) > 2 && args[1] == "worker" && args[2] == "join"
}

// restart replaces the process after a lost GPU or a step that hangs. It returns if the command does
// not serve, if it was replaced too often, or if the system cannot replace it.
func restart(p process, args, environ []string, served time.Duration) {
	if !serving(args) {
		return
	}
	next, ok := nextRestart(os.Getenv(restartsEnv), served)
	if !ok {
		fmt.Fprintf(p.err, "trctl: a GPU was lost, or a step has hung, %d times in a row; giving up\n", maxRestarts+1)
		return
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintf(p.err, "trctl: restart: %v\n", err)
		return
	}
	fmt.Fprintf(p.err, "trctl: only a new process can go on; one takes this one's place (%s of %d)\n", next, maxRestarts)
	kept := make([]string, 0, len(environ)+1)
	for _, e := range environ {
		if !strings.HasPrefix(e, restartsEnv+"=") {
			kept = append(kept, e)
		}
	}
	if err := replaceProcess(self, args, append(kept, restartsEnv+"="+next)); err != nil {
		fmt.Fprintf(p.err, "trctl: restart: %v\n", err)
	}
}
