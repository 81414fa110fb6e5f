package cudaexec

import "fmt"

// StepError is a step that failed on the device. executor.ErrFailed is beside it in the chain, and so is the driver's
// error.
type StepError struct {
	// Step is the batch's number.
	Step uint64
	// Op is the operation, such as "attn" or "qkv product". It is empty when the device noticed a fault after several
	// operations had been enqueued, as those of a graph; with Config.BlockEachOp it never is.
	Op string
	// Layer is the operation's layer, below 0 for none.
	Layer int
	Err   error
}

func (e *StepError) Error() string {
	switch {
	case e.Op == "":
		return fmt.Sprintf("step %d: an operation that is not known: %v", e.Step, e.Err)
	case e.Layer < 0:
		return fmt.Sprintf("step %d: %s: %v", e.Step, e.Op, e.Err)
	}
	return fmt.Sprintf("step %d: %s of layer %d: %v", e.Step, e.Op, e.Layer, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }
