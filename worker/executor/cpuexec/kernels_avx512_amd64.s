//go:build amd64 && !noasm

#include "textflag.h"

// Byte shuffles that widen eight bfloat16 numbers, of which every 128-bit lane has
// a copy: the first lane takes the first four, the second lane the others. A byte
// of 0x80 gives zero, so the numbers land in the high halves of their words.
DATA widen8<>+0(SB)/8, $0x0302808001008080
DATA widen8<>+8(SB)/8, $0x0706808005048080
DATA widen8<>+16(SB)/8, $0x0b0a808009088080
DATA widen8<>+24(SB)/8, $0x0f0e80800d0c8080
GLOBL widen8<>(SB), RODATA|NOPTR, $32

// STORE4 folds the sums of four rows of w for one row of x, as the other kernels
// do, and stores the four results.
#define STORE4(A, B, C, D, XA, XB) \
	VHADDPS B, A, A             \
	VHADDPS D, C, C             \
	VHADDPS C, A, A             \
	VEXTRACTF128 $1, A, XB      \
	VADDPS XB, XA, XA           \
	VMOVUPS XA, (R9)            \
	ADDQ BX, R9

// PAIR stores the sums of two rows of x, which are in the halves of four registers.
#define PAIR(ZA, ZB, ZC, ZD, A, B, C, D, XA, XB) \
	VEXTRACTF64X4 $1, ZA, Y24          \
	VEXTRACTF64X4 $1, ZB, Y25          \
	VEXTRACTF64X4 $1, ZC, Y26          \
	VEXTRACTF64X4 $1, ZD, Y27          \
	STORE4(A, B, C, D, XA, XB)         \
	VMOVUPS Y24, A                     \
	VMOVUPS Y25, B                     \
	VMOVUPS Y26, C                     \
	VMOVUPS Y27, D                     \
	STORE4(A, B, C, D, XA, XB)

// func matmul8bAVX512(y, x *float32, w *uint16, n, k, ld, ldy int)
// Eight rows of x by four rows of w: Z(4r+p) has the sums of row r of w with the
// rows 2p and 2p+1 of x in its halves. x is packed: for every eight columns, eight
// numbers of each row in turn. AX is the distance of rows of w in bytes, R10 three
// of them.
TEXT ·matmul8bAVX512(SB), NOSPLIT, $0-56
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), R13
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), DX
	MOVQ ld+40(FP), AX
	MOVQ ldy+48(FP), BX
	SHLQ $1, AX
	SHLQ $2, BX
	LEAQ (AX)(AX*2), R10
	SHRQ $3, DX
	VBROADCASTI64X4 widen8<>(SB), Z31

rows4:
	CMPQ CX, $4
	JLT  done
	MOVQ R13, R8
	MOVQ SI, R12
	MOVQ DX, R11
	VPXORQ Z0, Z0, Z0
	VPXORQ Z1, Z1, Z1
	VPXORQ Z2, Z2, Z2
	VPXORQ Z3, Z3, Z3
	VPXORQ Z4, Z4, Z4
	VPXORQ Z5, Z5, Z5
	VPXORQ Z6, Z6, Z6
	VPXORQ Z7, Z7, Z7
	VPXORQ Z8, Z8, Z8
	VPXORQ Z9, Z9, Z9
	VPXORQ Z10, Z10, Z10
	VPXORQ Z11, Z11, Z11
	VPXORQ Z12, Z12, Z12
	VPXORQ Z13, Z13, Z13
	VPXORQ Z14, Z14, Z14
	VPXORQ Z15, Z15, Z15

loop:
	VBROADCASTI32X4 (R8), Z20
	VBROADCASTI32X4 (R8)(AX*1), Z21
	VBROADCASTI32X4 (R8)(AX*2), Z22
	VBROADCASTI32X4 (R8)(R10*1), Z23
	VMOVUPS (R12), Z16
	VMOVUPS 64(R12), Z17
	VMOVUPS 128(R12), Z18
	VMOVUPS 192(R12), Z19
	VPSHUFB Z31, Z20, Z20
	VPSHUFB Z31, Z21, Z21
	VPSHUFB Z31, Z22, Z22
	VPSHUFB Z31, Z23, Z23
	VFMADD231PS Z20, Z16, Z0
	VFMADD231PS Z20, Z17, Z1
	VFMADD231PS Z20, Z18, Z2
	VFMADD231PS Z20, Z19, Z3
	VFMADD231PS Z21, Z16, Z4
	VFMADD231PS Z21, Z17, Z5
	VFMADD231PS Z21, Z18, Z6
	VFMADD231PS Z21, Z19, Z7
	VFMADD231PS Z22, Z16, Z8
	VFMADD231PS Z22, Z17, Z9
	VFMADD231PS Z22, Z18, Z10
	VFMADD231PS Z22, Z19, Z11
	VFMADD231PS Z23, Z16, Z12
	VFMADD231PS Z23, Z17, Z13
	VFMADD231PS Z23, Z18, Z14
	VFMADD231PS Z23, Z19, Z15
	ADDQ $16, R8
	ADDQ $256, R12
	DECQ R11
	JNZ  loop

	MOVQ DI, R9
	PAIR(Z0, Z4, Z8, Z12, Y0, Y4, Y8, Y12, X0, X4)
	PAIR(Z1, Z5, Z9, Z13, Y1, Y5, Y9, Y13, X1, X5)
	PAIR(Z2, Z6, Z10, Z14, Y2, Y6, Y10, Y14, X2, X6)
	PAIR(Z3, Z7, Z11, Z15, Y3, Y7, Y11, Y15, X3, X7)
	ADDQ $16, DI
	LEAQ (R13)(AX*4), R13
	SUBQ $4, CX
	JMP  rows4

done:
	VZEROUPPER
	RET
