package philox

import "math/bits"

// Purpose separates draws made at the same position by the same model. The
// values are part of the recipe and never change.
type Purpose uint8

const (
	// Token is the draw of the next token; the index is the token id.
	Token Purpose = 0
	// Route is a policy's draw (a coin flip, the choice of a model).
	Route Purpose = 1
)

const (
	mul0, mul1 = 0xD2511F53, 0xCD9E8D57
	weyl0      = 0x9E3779B9
	weyl1      = 0xBB67AE85
	rounds     = 10
)

// Block returns the four words that Philox4x32-10 makes of a counter and a key.
func Block(ctr [4]uint32, key [2]uint32) [4]uint32 {
	c0, c1, c2, c3 := ctr[0], ctr[1], ctr[2], ctr[3]
	k0, k1 := key[0], key[1]
	for range rounds {
		hi0, lo0 := bits.Mul32(mul0, c0)
		hi1, lo1 := bits.Mul32(mul1, c2)
		c0, c1, c2, c3 = hi1^c1^k0, lo1, hi0^c3^k1, lo0
		k0 += weyl0
		k1 += weyl1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Stream names the draws of one purpose at one position.
type Stream struct {
	Seed     uint64
	Position uint32
	Model    uint8
	Purpose  Purpose
}

// Block returns the words with indices [4n, 4n+4).
func (s Stream) Block(n uint32) [4]uint32 {
	return Block(
		[4]uint32{n, s.Position, uint32(s.Model) | uint32(s.Purpose)<<8, 0},
		[2]uint32{uint32(s.Seed), uint32(s.Seed >> 32)},
	)
}

// Word returns the word with the given index.
func (s Stream) Word(index uint32) uint32 {
	b := s.Block(index / 4)
	return b[index%4]
}

// Uniform returns a number in [0, 1) with 53 random bits: the high 21 bits of
// word 0 over the 32 bits of word 1, times 2^-53.
func Uniform(seed uint64, position uint32, model uint8, purpose Purpose) float64 {
	b := Stream{seed, position, model, purpose}.Block(0)
	return float64(uint64(b[0]>>11)<<32|uint64(b[1])) * (1.0 / (1 << 53))
}
