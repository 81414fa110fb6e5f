package driver

import (
	"errors"
	"fmt"
)

// CaptureMode says which calls of other threads a capture forbids.
type CaptureMode int32

const (
	// CaptureThread forbids unsafe calls only on the capturing thread. Goroutines move between threads, so lock the
	// thread for the length of the capture.
	CaptureThread CaptureMode = 1
	// CaptureRelaxed forbids nothing; use it when other goroutines allocate or load modules meanwhile.
	CaptureRelaxed CaptureMode = 2
)

// BeginCapture makes the stream record work instead of running it, until EndCapture.
func (s *Stream) BeginCapture(mode CaptureMode) error {
	if err := s.ok(); err != nil {
		return err
	}
	return s.ctx.fail("begin capture", s.ctx.driver.table.captureBegin(s.ctx.handle, s.handle, int32(mode)))
}

// EndCapture returns what was recorded. After an error during the capture it fails too, and the stream is usable
// again; call it in every case.
func (s *Stream) EndCapture() (*Graph, error) {
	if err := s.ok(); err != nil {
		return nil, err
	}
	handle, code := s.ctx.driver.table.captureEnd(s.ctx.handle, s.handle)
	if err := s.ctx.fail("end capture", code); err != nil {
		return nil, err
	}
	if handle == 0 {
		return nil, s.ctx.fail("end capture", int32(CodeInvalidValue))
	}
	s.ctx.count(kindGraph, 1)
	return &Graph{ctx: s.ctx, handle: handle}, nil
}

// Graph is recorded work. It can be closed once it is instantiated.
type Graph struct {
	ctx    *Context
	handle uintptr
}

// Nodes counts the recorded operations.
func (g *Graph) Nodes() (int, error) {
	count, code := g.ctx.driver.table.graphNodes(g.ctx.handle, g.handle)
	return int(count), g.ctx.fail("count graph nodes", code)
}

// Close destroys the graph; executables made from it stay valid.
func (g *Graph) Close() error {
	return g.ctx.closeObject(&g.handle, kindGraph, "graph", g.ctx.driver.table.graphDestroy)
}

// Instantiate makes an executable of the graph.
func (g *Graph) Instantiate() (*GraphExec, error) {
	handle, code := g.ctx.driver.table.graphInstantiate(g.ctx.handle, g.handle)
	if err := g.ctx.fail("instantiate graph", code); err != nil {
		return nil, err
	}
	g.ctx.count(kindGraphExec, 1)
	return &GraphExec{ctx: g.ctx, handle: handle}, nil
}

// GraphExec is a graph ready to launch. One executable runs once at a time: a second launch waits for the first.
type GraphExec struct {
	ctx    *Context
	handle uintptr
}

// Upload moves the graph to the device ahead of the first launch.
func (x *GraphExec) Upload(s *Stream) error {
	if err := s.ok(); err != nil {
		return err
	}
	return x.ctx.fail("upload graph", x.ctx.driver.table.graphUpload(x.ctx.handle, x.handle, s.handle))
}

// Launch enqueues one run on the stream.
func (x *GraphExec) Launch(s *Stream) error {
	if s.handle == 0 || x.handle == 0 {
		return fmt.Errorf("launch graph: %w", ErrClosed)
	}
	code := x.ctx.driver.table.graphLaunch(x.ctx.handle, x.handle, s.handle)
	if code == 0 {
		return nil
	}
	return x.ctx.fail("launch graph", code)
}

// Close destroys the executable. Its runs must have ended.
func (x *GraphExec) Close() error {
	return x.ctx.closeObject(&x.handle, kindGraphExec, "graph executable", x.ctx.driver.table.execDestroy)
}

// Record captures what record enqueues on the stream. The capture is ended in every case; the caller locks its thread when it
// uses CaptureThread.
func (s *Stream) Record(mode CaptureMode, record func() error) (*Graph, error) {
	if err := s.BeginCapture(mode); err != nil {
		return nil, err
	}
	recordErr := record()
	g, err := s.EndCapture()
	if recordErr != nil {
		if err == nil {
			recordErr = errors.Join(recordErr, g.Close())
		}
		return nil, fmt.Errorf("capture: %w", recordErr)
	}
	return g, err
}

// Capture is Record, and makes an executable of it.
func (s *Stream) Capture(mode CaptureMode, record func() error) (*GraphExec, error) {
	g, err := s.Record(mode, record)
	if err != nil {
		return nil, err
	}
	x, err := g.Instantiate()
	if closeErr := g.Close(); err == nil && closeErr != nil {
		return nil, closeErr
	}
	return x, err
}
