// Package engine is TokenRouter in one process, without a listener: models,
// their sub-services, the links between them, and sessions that serve requests.
//
//	e, err := engine.New(engine.Defaults())
//	if err != nil { … }
//	defer e.Close()
//	for tok, err := range e.Generate(ctx, engine.Request{
//		Model:    "tiny",
//		Messages: []engine.Message{{Role: "user", Content: "What is 48 + 72 * 29?"}},
//	}) {
//		if err != nil { … }
//		fmt.Print(tok.Text)
//	}
//
// `trctl serve` is the same engine with a gateway in front. It uses Load and Run
// where New and Close do not fit: when something else owns the engine's life.
//
// A replica whose run fails is started again; the requests on it continue on
// another replica, or on the same one once it is back, at the same position.
//
// A GPU that a fault has spoiled for the process (ErrDeviceLost), and a step that does
// not end (ErrHung), end the engine: only a new process helps.
package engine
