package selftest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
)

// gemmShape is out[t, n] = x[t, k] · w[n, k]ᵀ.
type gemmShape struct{ t, n, k int }

// gemmShapes are small enough for the reference, and different on every axis.
func gemmShapes() []gemmShape {
	return []gemmShape{{1, 4096, 1024}, {7, 520, 384}, {16, 3072, 1024}, {64, 1024, 512}}
}

// noise is a bf16 number in [-1, 1), a hash of its place.
func noise(seed, i uint32) uint16 {
	h := (i+1)*2654435761 ^ seed*2246822519
	h ^= h >> 15
	h *= 2246822519
	h ^= h >> 13
	return roundBF16(float32(int32(h)) / (1 << 31))
}

// roundBF16 rounds to the nearest bf16, ties to even. The values here are finite.
func roundBF16(f float32) uint16 {
	u := math.Float32bits(f)
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

func widen(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }

func noises(seed uint32, n int) []uint16 {
	out := make([]uint16, n)
	for i := range out {
		out[i] = noise(seed, uint32(i))
	}
	return out
}

// reference multiplies in float64.
func reference(s gemmShape, x, w []uint16) []float64 {
	xs, ws := make([]float64, len(x)), make([]float64, len(w))
	for i := range x {
		xs[i] = widen(x[i])
	}
	for i := range w {
		ws[i] = widen(w[i])
	}
	out := make([]float64, s.t*s.n)
	for t := range s.t {
		row := xs[t*s.k : (t+1)*s.k]
		for n := range s.n {
			column := ws[n*s.k : (n+1)*s.k]
			sum := 0.0
			for k, v := range row {
				sum += v * column[k]
			}
			out[t*s.n+n] = sum
		}
	}
	return out
}

// distance is ‖a−b‖ / ‖b‖.
func distance(a, b []float64) float64 {
	var difference, norm float64
	for i := range b {
		difference += (a[i] - b[i]) * (a[i] - b[i])
		norm += b[i] * b[i]
	}
	return math.Sqrt(difference / max(norm, math.SmallestNonzeroFloat64))
}

// gemmWorkspace is what the library may use.
const gemmWorkspace = 32 << 20

// checkGEMM compares cuBLASLt with the reference, for fp32 and bf16 results, run and replayed from a graph.
func (r *rig) checkGEMM(ctx context.Context) error {
	start := time.Now()
	lib, err := r.env.loadLibrary(r.driver.Version() / 1000)
	if errors.Is(err, cublaslt.ErrNoLibrary) {
		return fmt.Errorf("%w: %w", errSkipped, err)
	}
	if err != nil {
		return err
	}
	handle, err := lib.NewHandle(r.ctx, gemmWorkspace)
	if err != nil {
		return err
	}
	r.later(handle.Close)
	ws, err := r.alloc(gemmWorkspace)
	if err != nil {
		return err
	}
	r.line("cuBLASLt", fmt.Sprintf("%s, ready after %v", lib.Version(), time.Since(start).Round(time.Millisecond)))
	for i, s := range r.env.shapes {
		err := r.scope(func() error {
			return r.gemm(ctx, handle, cublaslt.Workspace{Ptr: ws, Bytes: gemmWorkspace}, s, uint32(i))
		})
		if err != nil {
			return fmt.Errorf("shape T=%d N=%d K=%d: %w", s.t, s.n, s.k, err)
		}
	}
	return nil
}

func (r *rig) gemm(ctx context.Context, handle *cublaslt.Handle, ws cublaslt.Workspace, s gemmShape, seed uint32) error {
	x, w := noises(2*seed, s.t*s.k), noises(2*seed+1, s.n*s.k)
	want := reference(s, x, w)
	place := func(d tensor.DType, rows, cols int) (tensor.View, error) {
		v := tensor.View{Shape: tensor.Of(rows, cols), DType: d}
		bytes, err := v.Bytes()
		if err != nil {
			return v, err
		}
		p, err := r.alloc(bytes)
		v.Ptr = uint64(p)
		return v, err
	}
	xv, errX := place(tensor.BF16, s.t, s.k)
	wv, errW := place(tensor.BF16, s.n, s.k)
	single, errS := place(tensor.F32, s.t, s.n)
	half, errH := place(tensor.BF16, s.t, s.n)
	if err := errors.Join(errX, errW, errS, errH); err != nil {
		return err
	}
	if err := errors.Join(r.ctx.Write(driver.Ptr(xv.Ptr), driver.Bytes(x)), r.ctx.Write(driver.Ptr(wv.Ptr), driver.Bytes(w))); err != nil {
		return err
	}
	// The first run of a kernel loads its code, so both run once before the capture.
	err := errors.Join(handle.Matmul(r.stream, single, xv, wv, false, ws), handle.Matmul(r.stream, half, xv, wv, false, ws), r.wait(ctx))
	if err != nil {
		return err
	}
	const repeats = 20
	graph, err := r.capture(func() error {
		for range repeats {
			if err := handle.Matmul(r.stream, half, xv, wv, false, ws); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	took, err := r.elapsed(ctx, 5, func() error { return graph.Launch(r.stream) })
	if err != nil {
		return err
	}
	gotSingle, gotHalf := make([]float32, s.t*s.n), make([]uint16, s.t*s.n)
	err = errors.Join(r.ctx.Read(driver.Bytes(gotSingle), driver.Ptr(single.Ptr)), r.ctx.Read(driver.Bytes(gotHalf), driver.Ptr(half.Ptr)))
	if err != nil {
		return err
	}
	wide, narrow := make([]float64, len(want)), make([]float64, len(want))
	for i := range want {
		wide[i], narrow[i] = float64(gotSingle[i]), widen(gotHalf[i])
	}
	errorSingle, errorHalf := distance(wide, want), distance(narrow, want)
	if !(errorSingle < 1e-4) || !(errorHalf < 4e-3) {
		return fmt.Errorf("relative error %.2g in fp32 and %.2g in bf16", errorSingle, errorHalf)
	}
	r.line(fmt.Sprintf("cuBLASLt T=%d N=%d K=%d", s.t, s.n, s.k), fmt.Sprintf("error %.1e fp32, %.1e bf16; %.2f µs in a graph, weights from L2", errorSingle, errorHalf,
		float64(took.Nanoseconds())/1e3/repeats))
	return nil
}
