package pickle

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// FuzzProgram runs any program: it must end, within its bounds, without a panic.
func FuzzProgram(f *testing.F) {
	for _, tc := range hostile() {
		f.Add([]byte(tc.program))
	}
	for _, name := range []string{"../testdata/r2r.pt", "../testdata/citer.pth"} {
		f.Add(programOf(f, name))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		storages := map[string]*storage{}
		v, n, err := run(program, storages)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrRefused) {
				t.Errorf("error %v", err)
			}
			return
		}
		if n > len(program) {
			t.Errorf("%d of %d bytes", n, len(program))
		}
		if x, ok := v.(*Tensor); ok {
			elems := 1
			for _, d := range x.Shape {
				elems *= d
			}
			if elems > x.store.elems {
				t.Errorf("%v of %d elements", x.Shape, x.store.elems)
			}
		}
	})
}

// FuzzFile opens any file and reads the tensors on its first level.
func FuzzFile(f *testing.F) {
	for _, name := range []string{"../testdata/citer.pth", "../testdata/citer-legacy.pth"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(archive(f, map[string]string{"x/data.pkl": "\x80\x02}."}))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		d, ok := file.Root.(*Dict)
		if !ok {
			return
		}
		for _, key := range d.Keys {
			v, _ := d.Get(key)
			if x, ok := v.(*Tensor); ok {
				if got, err := file.Read("x", x); err == nil && len(got.Bytes) > len(b) {
					t.Errorf("%d bytes from a file of %d", len(got.Bytes), len(b))
				}
			}
		}
	})
}

func programOf(tb testing.TB, path string) []byte {
	tb.Helper()
	r, err := zip.OpenReader(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer r.Close()
	for _, e := range r.File {
		if strings.HasSuffix(e.Name, "/data.pkl") {
			b, err := content(e, maxProgram)
			if err != nil {
				tb.Fatal(err)
			}
			return b
		}
	}
	tb.Fatal("no program")
	return nil
}

// archive is a zip file of uncompressed entries.
func archive(tb testing.TB, entries map[string]string) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, text := range entries {
		e, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			tb.Fatal(err)
		}
		if _, err := e.Write([]byte(text)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

type program struct {
	name, program string
	is            error
	says          string
}

// text is a string in a program.
func text(s string) string {
	return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
}

const (
	head    = "\x80\x02"
	rebuild = "ctorch._utils\n_rebuild_tensor_v2\n"
)

// stored is a storage of so many float32.
func stored(n byte) string {
	return "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K" + string(n) + "tQ"
}

// tensor is a call that makes a tensor.
func tensor(store, offset, shape, stride string) string {
	return rebuild + "(" + store + offset + shape + stride + "\x89" + "ccollections\nOrderedDict\n)Rt" + "R"
}

// hostile are programs that must be refused.
func hostile() []program {
	return []program{
		{"os.system", head + "cos\nsystem\n" + text("echo x") + "\x85R.", ErrRefused, `"os.system"`},
		{"posix", head + "cposix\nsystem\n" + text("echo x") + "\x85R.", ErrRefused, `"posix.system"`},
		{"builtins.eval", head + "cbuiltins\neval\n" + text("1") + "\x85R.", ErrRefused, `"builtins.eval"`},
		{"the older builtins", head + "c__builtin__\nexec\n" + text("1") + "\x85R.", ErrRefused, `"__builtin__.exec"`},
		{"getattr", head + "cbuiltins\ngetattr\n.", ErrRefused, `"builtins.getattr"`},
		{"by the stack", "\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.", ErrRefused, `"os.system"`},
		{"through an attribute", head + "ccollections\nOrderedDict.__init__\n.", ErrRefused, "OrderedDict.__init__"},
		{"torch.load", head + "ctorch\nload\n.", ErrRefused, `"torch.load"`},
		{"another rebuilder", head + "ctorch._utils\n_rebuild_device_tensor_from_numpy\n.", ErrRefused, "_rebuild_device"},
		{"another storage", head + "ctorch\nDoubleStorage\n.", ErrRefused, `"torch.DoubleStorage"`},
		{"an object", head + "ccollections\nOrderedDict\n)\x81.", ErrRefused, "instruction 0x81"},
		{"an instance", head + "(icollections\nOrderedDict\n.", ErrRefused, "instruction 0x69"},
		{"an extension", head + "\x82\x01.", ErrRefused, "instruction 0x82"},
		{"a buffer", "\x80\x05\x97.", ErrRefused, "instruction 0x97"},
		{"text protocol", "I1\n.", ErrRefused, "instruction 0x49"},
		{"protocol 1", "\x80\x01N.", ErrRefused, "protocol 1"},
		{"a call of a string", head + text("os.system") + ")R.", ErrRefused, "a call of string"},
		{"a call of a list", head + "])R.", ErrRefused, "a call of"},
		{"a dict of pairs", head + "ccollections\nOrderedDict\n]\x85R.", ErrRefused, "1 arguments"},
		{"attributes of a list", head + "]}b.", ErrRefused, "attributes"},
		{"other attributes", head + "}}" + text("__class__") + "Nsb.", ErrRefused, "__class__"},
		{"attributes that are no dict", head + "}Nb.", ErrRefused, "attributes"},
		{"a reference to anything", head + text("x") + "Q.", ErrRefused, "no storage"},
		{"a reference to a view", head + "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K\x04)tQ.", ErrRefused, "no storage"},
		{"a path for a storage", head + "(" + text("storage") + "ctorch\nFloatStorage\n" + text("../x") + text("cpu") + "K\x04tQ.", ErrCorrupt, "../x"},
		{"a class for a storage", head + "(" + text("storage") + "ccollections\nOrderedDict\n" + text("0") + text("cpu") + "K\x04tQ.", ErrCorrupt, "class"},
		{"a storage below nothing", head + "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "J\xff\xff\xff\xfftQ.", ErrCorrupt, "-1"},
		{"a huge storage", head + "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "\x8a\x05\x00\x00\x00\x00\x01tQ.", ErrCorrupt, "4294967296"},
		{"two sizes of a storage", head + stored(4) + "0" + stored(5) + ".", ErrCorrupt, "is 4 of F32 and 5"},
		{"a shape beyond its storage", head + tensor(stored(4), "K\x00", "K\x03K\x02\x86", "K\x02K\x01\x86") + ".", ErrCorrupt, "shape [3 2]"},
		{"an offset beyond its storage", head + tensor(stored(4), "K\x03", "K\x02\x85", "K\x01\x85") + ".", ErrCorrupt, "at 3"},
		{"an offset below nothing", head + tensor(stored(4), "J\xff\xff\xff\xff", "K\x02\x85", "K\x01\x85") + ".", ErrCorrupt, "-1"},
		{"strides beyond its storage", head + tensor(stored(4), "K\x00", "K\x02\x85", "K\x04\x85") + ".", ErrCorrupt, "strides [4]"},
		{"more strides than sizes", head + tensor(stored(4), "K\x00", "K\x02\x85", "K\x01K\x01\x86") + ".", ErrCorrupt, "strides"},
		{"a negative size", head + tensor(stored(4), "K\x00", "J\xff\xff\xff\xff\x85", "K\x01\x85") + ".", ErrCorrupt, "-1"},
		{"many of one number", head + tensor(stored(1), "K\x00", "K\xffK\xff\x86", "K\x00K\x00\x86") + ".", ErrCorrupt, "255"},
		{"nine dimensions", head + tensor(stored(1), "K\x00", "("+strings.Repeat("K\x01", 9)+"t", ")") + ".", ErrCorrupt, "shape"},
		{"a tensor of a string", head + tensor(text("x"), "K\x00", ")", ")") + ".", ErrCorrupt, "string"},
		{"a tensor of three", head + rebuild + "NNN\x87R.", ErrCorrupt, "3 arguments"},
		{"a list for a key", head + "}]Ns.", ErrRefused, "a key"},
		{"a key twice", head + "}(" + text("a") + "N" + text("a") + "Nu.", ErrCorrupt, "twice"},
		{"half a pair", head + "}(Nu.", ErrCorrupt, "1 keys"},
		{"append to a dict", head + "}Na.", ErrCorrupt, "appended"},
		{"nothing remembered", head + "h\x05.", ErrCorrupt, "remembered as 5"},
		{"nothing there", head + "0.", ErrCorrupt, "nothing"},
		{"under a mark", head + "N(0.", ErrCorrupt, "nothing"},
		{"a call under a mark", head + "ccollections\nOrderedDict\n)(R.", ErrCorrupt, "nothing"},
		{"no mark", head + "t.", ErrCorrupt, "no mark"},
		{"nothing at the end", head + ".", ErrCorrupt, "0 values"},
		{"two at the end", head + "NN.", ErrCorrupt, "2 values"},
		{"a mark at the end", head + "(.", ErrCorrupt, "1 values"},
		{"no end", head + "N", ErrCorrupt, "ends early"},
		{"a string beyond the end", head + "X\xff\x00\x00\x00a.", ErrCorrupt, "ends early"},
		{"a huge string", head + "X\xff\xff\xff\xff.", ErrCorrupt, "4294967295"},
		{"a name without end", head + "c" + strings.Repeat("x", 1000), ErrCorrupt, "a name"},
		{"nothing at all", "", ErrCorrupt, "ends early"},
	}
}

func TestHostilePrograms(t *testing.T) {
	for _, tc := range hostile() {
		if _, _, err := run([]byte(tc.program), map[string]*storage{}); !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.says)
		}
	}
}

// TestBounds: programs that grow.
func TestBounds(t *testing.T) {
	laughs := head + "]q\x00"
	for range 60 { // 2^60 leaves, if they were copied
		laughs += "0(h\x00h\x00lq\x00"
	}
	self := head + "]q\x00h\x00a" // a list in itself
	put := func(n int) string {
		var out []byte
		for i := range n {
			out = binary.LittleEndian.AppendUint32(append(out, 'r'), uint32(i))
		}
		return string(out)
	}
	for _, tc := range []struct{ name, program, says string }{
		{"a tall stack", head + strings.Repeat("N", maxStack+1), "on the stack"},
		{"many marks", head + strings.Repeat("(", maxMarks+1), "marks"},
		{"a large memory", head + "N" + put(maxMemo+1), "are remembered"},
		{"many values", head + "]" + strings.Repeat("}a", maxValues), "values"},
		{"many tensors", head + stored(1) + "q\x000" + strings.Repeat(tensor("h\x00", "K\x00", ")", ")")+"0", maxTensors+1), "tensors"},
	} {
		if _, _, err := run([]byte(tc.program), map[string]*storage{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	for name, p := range map[string]string{"shared lists": laughs + ".", "a list in itself": self + "."} {
		if v, _, err := run([]byte(p), map[string]*storage{}); err != nil {
			t.Errorf("%s: %T, %v", name, v, err)
		}
	}
	deep := head + strings.Repeat("]", 1) + strings.Repeat("\x85", 1<<16) + "." // nested tuples
	if _, _, err := run([]byte(deep), map[string]*storage{}); err != nil {
		t.Errorf("deep tuples: %v", err)
	}
}

func TestValues(t *testing.T) {
	p := head + "(NK\x07M\x01\x02J\xfe\xff\xff\xff\x8a\x00\x8a\x02\x00\x80\x8a\x09\x01\x00\x00\x00\x00\x00\x00\x00\x01G" +
		string(binary.BigEndian.AppendUint64(nil, math.Float64bits(0.35))) + "\x88\x89" + text("é") + "ctorch\nfloat32\n)t."
	v, n, err := run([]byte(p), map[string]*storage{})
	if err != nil || n != len(p) {
		t.Fatal(err, n)
	}
	want := Tuple{nil, int64(7), int64(513), int64(-2), int64(0), int64(-32768), Long("\x01\x00\x00\x00\x00\x00\x00\x00\x01"), 0.35, true, false, "é",
		Name("torch.float32"), Tuple{}}
	for i, x := range v.(Tuple)[:12] {
		if x != want[i] {
			t.Errorf("value %d: %#v, want %#v", i, x, want[i])
		}
	}
}

// TestStrides reads a transposed view.
func TestStrides(t *testing.T) {
	var data []byte
	for i := range 7 {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(i)))
	}
	read := func(program string) ([]float32, error) {
		b := archive(t, map[string]string{"x/data.pkl": head + program + ".", "x/data/0": string(data)})
		f, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return nil, err
		}
		got, err := f.Read("t", f.Root.(*Tensor))
		if err != nil {
			return nil, err
		}
		return got.Float32()
	}
	for _, tc := range []struct {
		shape, stride string
		want          []float32
	}{
		{"K\x02K\x03\x86", "K\x03K\x01\x86", []float32{1, 2, 3, 4, 5, 6}},
		{"K\x03K\x02\x86", "K\x01K\x03\x86", []float32{1, 4, 2, 5, 3, 6}},
		{"K\x03\x85", "K\x00\x85", []float32{1, 1, 1}},
		{")", ")", []float32{1}},
		{"K\x00K\x03\x86", "K\x03K\x01\x86", nil},
	} {
		got, err := read(tensor(stored(7), "K\x01", tc.shape, tc.stride))
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%q %q: %v, %v", tc.shape, tc.stride, got, err)
		}
	}
	if _, err := read(tensor(stored(8), "K\x01", ")", ")")); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a storage larger than its entry: %v", err)
	}
}

// TestHostileFiles damages archives.
func TestHostileFiles(t *testing.T) {
	good := map[string]string{"x/data.pkl": head + tensor(stored(2), "K\x00", "K\x02\x85", "K\x01\x85") + ".", "x/data/0": "12345678"}
	with := func(name, text string) []byte {
		all := map[string]string{}
		for k, v := range good {
			all[k] = v
		}
		all[name] = text
		return archive(t, all)
	}
	compressed := func() []byte {
		var b bytes.Buffer
		w := zip.NewWriter(&b)
		e, err := w.Create("x/data.pkl")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Write(make([]byte, 8<<20)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}()
	broken := slices.Clone(archive(t, good))
	copy(broken[bytes.Index(broken, []byte("12345678")):], "87654321")
	claims := func() []byte { // an entry that claims more bytes than the file has
		var b bytes.Buffer
		w := zip.NewWriter(&b)
		for name, text := range map[string]string{"x/data.pkl": head + tensor(strings.Replace(stored(2), "K\x02", "J\x00\x00\x00\x40", 1), "K\x00", "K\x02\x85", "K\x01\x85") + "."} {
			e, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.CreateRaw(&zip.FileHeader{Name: "x/data/0", Method: zip.Store, CRC32: crc32.ChecksumIEEE(nil),
			CompressedSize64: 4 << 30, UncompressedSize64: 4 << 30}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}()
	tests := []struct {
		name string
		file []byte
		is   error
		says string
	}{
		{"good", archive(t, good), nil, ""},
		{"two programs", with("y/data.pkl", "N."), ErrCorrupt, "two programs"},
		{"no program", archive(t, map[string]string{"x/y": ""}), ErrCorrupt, "no data.pkl"},
		{"other byte order", with("x/byteorder", "big"), ErrRefused, "byte order"},
		{"a storage of another size", with("x/data/0", "1234"), ErrCorrupt, "has 4 bytes"},
		{"compressed", compressed, ErrCorrupt, "8388608 bytes"},
		{"a large program", with("x/data.pkl", strings.Repeat("N", maxProgram+1)), ErrCorrupt, "at most"},
		{"damaged", broken, ErrCorrupt, "checksum"},
		{"claims of 4 GiB", claims, ErrCorrupt, "4294967296 bytes"},
		{"cut", archive(t, good)[:100], ErrCorrupt, "zip"},
		{"no torch file", []byte(strings.Repeat("hello ", 9)), ErrCorrupt, "torch.save"},
		{"empty", nil, ErrCorrupt, "torch.save"},
	}
	for _, tc := range tests {
		f, err := Open(bytes.NewReader(tc.file), int64(len(tc.file)))
		if err == nil {
			_, err = f.Read("t", f.Root.(*Tensor))
		}
		if !errors.Is(err, tc.is) || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.says)
		}
	}
}

// TestSharedStorage: a small program must not read a large storage again and again.
func TestSharedStorage(t *testing.T) {
	b := archive(t, map[string]string{
		"x/data.pkl": head + tensor("("+text("storage")+"ctorch\nFloatStorage\n"+text("0")+text("cpu")+"M\x00\x10tQ", "K\x00", "K\x02\x85", "K\x01\x85") + ".",
		"x/data/0":   strings.Repeat("\x00", 4<<12),
	})
	f, err := Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		got, err := f.Read("t", f.Root.(*Tensor))
		if err == nil && cap(got.Bytes) > 64 {
			t.Errorf("a view of 8 bytes keeps %d", cap(got.Bytes))
		}
		if (err == nil) != (i < maxReading) {
			t.Errorf("time %d: %v", i+1, err)
		}
	}
}

// TestCompressedSmall: even a small entry must not be compressed.
func TestCompressedSmall(t *testing.T) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	e, err := w.Create("x/data.pkl")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Write([]byte("\x80\x02N.")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(bytes.NewReader(b.Bytes()), int64(b.Len())); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

// TestLegacy reads a state dict in both formats: the same values.
func TestLegacy(t *testing.T) {
	open := func(path string) (*File, *Dict) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		return f, f.Root.(*Dict)
	}
	f, a := open("../testdata/citer.pth")
	g, b := open("../testdata/citer-legacy.pth")
	if !slices.Equal(a.Keys, b.Keys) || len(a.Keys) != 11 {
		t.Fatalf("keys %v and %v", a.Keys, b.Keys)
	}
	for _, k := range a.Keys {
		x, _ := a.Get(k)
		y, _ := b.Get(k)
		s, err := f.Read("x", x.(*Tensor))
		if err != nil {
			t.Fatal(err)
		}
		u, err := g.Read("y", y.(*Tensor))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.Shape, u.Shape) || !bytes.Equal(s.Bytes, u.Bytes) || s.DType != u.DType {
			t.Errorf("%v differs", k)
		}
		if k == "mlp.1.num_batches_tracked" && s.DType != model.I64 {
			t.Errorf("%v is %s", k, s.DType)
		}
	}
	raw, err := os.ReadFile("../testdata/citer-legacy.pth")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{len(raw) - 1, len(raw) / 2, 40, 16, 15} {
		cut := raw[:n]
		if _, err := Open(bytes.NewReader(cut), int64(n)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}
