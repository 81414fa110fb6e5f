package tokenizer

import "unicode"

// youngMarks returns the marks that came into Unicode after version 9, whose
// normal form the reference implementation uses: for it they are plain
// characters, which neither move past other marks nor compose. U+11930 is no
// mark but composes with what stands before it since version 13.
func youngMarks() *unicode.RangeTable {
	return &unicode.RangeTable{
		R16: []unicode.Range16{
			{Lo: 0x7fd, Hi: 0x7fd, Stride: 1},
			{Lo: 0x898, Hi: 0x89f, Stride: 1},
			{Lo: 0x8ca, Hi: 0x8d3, Stride: 1},
			{Lo: 0x9fe, Hi: 0x9fe, Stride: 1},
			{Lo: 0xc3c, Hi: 0xc3c, Stride: 1},
			{Lo: 0xd3b, Hi: 0xd3c, Stride: 1},
			{Lo: 0xeba, Hi: 0xeba, Stride: 1},
			{Lo: 0x1715, Hi: 0x1715, Stride: 1},
			{Lo: 0x1abf, Hi: 0x1ace, Stride: 1},
			{Lo: 0x1df6, Hi: 0x1dfa, Stride: 1},
			{Lo: 0xa82c, Hi: 0xa82c, Stride: 1},
		},
		R32: []unicode.Range32{
			{Lo: 0x10d24, Hi: 0x10d27, Stride: 1},
			{Lo: 0x10eab, Hi: 0x10eac, Stride: 1},
			{Lo: 0x10efd, Hi: 0x10eff, Stride: 1},
			{Lo: 0x10f46, Hi: 0x10f50, Stride: 1},
			{Lo: 0x10f82, Hi: 0x10f85, Stride: 1},
			{Lo: 0x11070, Hi: 0x11070, Stride: 1},
			{Lo: 0x1133b, Hi: 0x1133b, Stride: 1},
			{Lo: 0x1145e, Hi: 0x1145e, Stride: 1},
			{Lo: 0x11839, Hi: 0x1183a, Stride: 1},
			{Lo: 0x11930, Hi: 0x11930, Stride: 1},
			{Lo: 0x1193d, Hi: 0x1193e, Stride: 1},
			{Lo: 0x11943, Hi: 0x11943, Stride: 1},
			{Lo: 0x119e0, Hi: 0x119e0, Stride: 1},
			{Lo: 0x11a34, Hi: 0x11a34, Stride: 1},
			{Lo: 0x11a47, Hi: 0x11a47, Stride: 1},
			{Lo: 0x11a99, Hi: 0x11a99, Stride: 1},
			{Lo: 0x11d42, Hi: 0x11d42, Stride: 1},
			{Lo: 0x11d44, Hi: 0x11d45, Stride: 1},
			{Lo: 0x11d97, Hi: 0x11d97, Stride: 1},
			{Lo: 0x11f41, Hi: 0x11f42, Stride: 1},
			{Lo: 0x16ff0, Hi: 0x16ff1, Stride: 1},
			{Lo: 0x1e08f, Hi: 0x1e08f, Stride: 1},
			{Lo: 0x1e130, Hi: 0x1e136, Stride: 1},
			{Lo: 0x1e2ae, Hi: 0x1e2ae, Stride: 1},
			{Lo: 0x1e2ec, Hi: 0x1e2ef, Stride: 1},
			{Lo: 0x1e4ec, Hi: 0x1e4ef, Stride: 1},
		},
	}
}
