//go:build amd64 && !noasm

#include "textflag.h"

// Sums: one YMM register holds the eight partial sums of one output element.
// Horizontal adds give ((0+1)+(2+3)) and ((4+5)+(6+7)) in the two halves, which
// are added last. Every routine here and the Go code fold in this order.

// func matvecAVX2(y, x, w *float32, n, k, ld int)
// Eight rows at a time with one load of x for all, then row by row.
// R8 walks row 0, R9 row 4; AX is the distance of rows in bytes, R10 three of them.
TEXT ·matvecAVX2(SB), NOSPLIT, $0-48
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), R13
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), DX
	MOVQ ld+40(FP), AX
	SHLQ $2, AX
	LEAQ (AX)(AX*2), R10
	SHRQ $3, DX

rows8:
	CMPQ CX, $8
	JLT  rows1
	MOVQ R13, R8
	LEAQ (R13)(AX*4), R9
	MOVQ SI, R12
	MOVQ DX, R11
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7

loop8:
	VMOVUPS (R12), Y8
	VFMADD231PS (R8), Y8, Y0
	VFMADD231PS (R8)(AX*1), Y8, Y1
	VFMADD231PS (R8)(AX*2), Y8, Y2
	VFMADD231PS (R8)(R10*1), Y8, Y3
	VFMADD231PS (R9), Y8, Y4
	VFMADD231PS (R9)(AX*1), Y8, Y5
	VFMADD231PS (R9)(AX*2), Y8, Y6
	VFMADD231PS (R9)(R10*1), Y8, Y7
	ADDQ $32, R8
	ADDQ $32, R9
	ADDQ $32, R12
	DECQ R11
	JNZ  loop8

	VHADDPS Y1, Y0, Y0
	VHADDPS Y3, Y2, Y2
	VHADDPS Y5, Y4, Y4
	VHADDPS Y7, Y6, Y6
	VHADDPS Y2, Y0, Y0
	VHADDPS Y6, Y4, Y4
	VPERM2F128 $0x20, Y4, Y0, Y1
	VPERM2F128 $0x31, Y4, Y0, Y2
	VADDPS Y2, Y1, Y1
	VMOVUPS Y1, (DI)
	ADDQ $32, DI
	LEAQ (R13)(AX*8), R13
	SUBQ $8, CX
	JMP  rows8

rows1:
	TESTQ CX, CX
	JZ   done
	MOVQ R13, R8
	MOVQ SI, R12
	MOVQ DX, R11
	VXORPS Y0, Y0, Y0

loop1:
	VMOVUPS (R12), Y8
	VFMADD231PS (R8), Y8, Y0
	ADDQ $32, R8
	ADDQ $32, R12
	DECQ R11
	JNZ  loop1

	VHADDPS Y0, Y0, Y0
	VHADDPS Y0, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDSS X1, X0, X0
	VMOVSS X0, (DI)
	ADDQ $4, DI
	ADDQ AX, R13
	DECQ CX
	JMP  rows1

done:
	VZEROUPPER
	RET

// func matmul4AVX2(y, x, w *float32, n, k, ld, ldy int)
// Four rows of x by two rows of w: eight sums, six loads for eight multiply-adds.
// AX is the distance of rows in bytes, R10 three of them.
TEXT ·matmul4AVX2(SB), NOSPLIT, $0-56
	MOVQ y+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), R13
	MOVQ n+24(FP), CX
	MOVQ k+32(FP), DX
	MOVQ ld+40(FP), AX
	MOVQ ldy+48(FP), BX
	SHLQ $2, AX
	SHLQ $2, BX
	LEAQ (AX)(AX*2), R10
	SHRQ $3, DX

pair:
	CMPQ CX, $2
	JLT  done4
	MOVQ R13, R8
	MOVQ SI, R12
	MOVQ DX, R11
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7

loop4:
	VMOVUPS (R8), Y8
	VMOVUPS (R8)(AX*1), Y9
	VMOVUPS (R12), Y10
	VMOVUPS (R12)(AX*1), Y11
	VMOVUPS (R12)(AX*2), Y12
	VMOVUPS (R12)(R10*1), Y13
	VFMADD231PS Y8, Y10, Y0
	VFMADD231PS Y8, Y11, Y1
	VFMADD231PS Y8, Y12, Y2
	VFMADD231PS Y8, Y13, Y3
	VFMADD231PS Y9, Y10, Y4
	VFMADD231PS Y9, Y11, Y5
	VFMADD231PS Y9, Y12, Y6
	VFMADD231PS Y9, Y13, Y7
	ADDQ $32, R8
	ADDQ $32, R12
	DECQ R11
	JNZ  loop4

	VHADDPS Y1, Y0, Y0
	VHADDPS Y3, Y2, Y2
	VHADDPS Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VADDPS X1, X0, X0
	VHADDPS Y5, Y4, Y4
	VHADDPS Y7, Y6, Y6
	VHADDPS Y6, Y4, Y4
	VEXTRACTF128 $1, Y4, X5
	VADDPS X5, X4, X4

	// X0 has row 0 of w for the four rows of x, X4 row 1.
	VUNPCKLPS X4, X0, X2
	VUNPCKHPS X4, X0, X3
	MOVQ DI, R9
	VMOVLPS X2, (R9)
	ADDQ BX, R9
	VMOVHPS X2, (R9)
	ADDQ BX, R9
	VMOVLPS X3, (R9)
	ADDQ BX, R9
	VMOVHPS X3, (R9)
	ADDQ $8, DI
	LEAQ (R13)(AX*2), R13
	SUBQ $2, CX
	JMP  pair

done4:
	VZEROUPPER
	RET

// func weightedSumAVX2(out, v, w *float32, n, d int)
// Columns in blocks of 64, then of 8; within a block the rows in order.
TEXT ·weightedSumAVX2(SB), NOSPLIT, $0-40
	MOVQ out+0(FP), DI
	MOVQ v+8(FP), SI
	MOVQ w+16(FP), R13
	MOVQ n+24(FP), CX
	MOVQ d+32(FP), DX
	MOVQ DX, AX
	SHLQ $2, AX

cols64:
	CMPQ DX, $64
	JLT  cols8
	VMOVUPS (DI), Y0
	VMOVUPS 32(DI), Y1
	VMOVUPS 64(DI), Y2
	VMOVUPS 96(DI), Y3
	VMOVUPS 128(DI), Y4
	VMOVUPS 160(DI), Y5
	VMOVUPS 192(DI), Y6
	VMOVUPS 224(DI), Y7
	MOVQ SI, R8
	MOVQ R13, R9
	MOVQ CX, R11

loop64:
	VBROADCASTSS (R9), Y8
	VFMADD231PS (R8), Y8, Y0
	VFMADD231PS 32(R8), Y8, Y1
	VFMADD231PS 64(R8), Y8, Y2
	VFMADD231PS 96(R8), Y8, Y3
	VFMADD231PS 128(R8), Y8, Y4
	VFMADD231PS 160(R8), Y8, Y5
	VFMADD231PS 192(R8), Y8, Y6
	VFMADD231PS 224(R8), Y8, Y7
	ADDQ $4, R9
	ADDQ AX, R8
	DECQ R11
	JNZ  loop64

	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	VMOVUPS Y4, 128(DI)
	VMOVUPS Y5, 160(DI)
	VMOVUPS Y6, 192(DI)
	VMOVUPS Y7, 224(DI)
	ADDQ $256, DI
	ADDQ $256, SI
	SUBQ $64, DX
	JMP  cols64

cols8:
	TESTQ DX, DX
	JZ   doneSum
	VMOVUPS (DI), Y0
	MOVQ SI, R8
	MOVQ R13, R9
	MOVQ CX, R11

loopCol:
	VBROADCASTSS (R9), Y8
	VFMADD231PS (R8), Y8, Y0
	ADDQ $4, R9
	ADDQ AX, R8
	DECQ R11
	JNZ  loopCol

	VMOVUPS Y0, (DI)
	ADDQ $32, DI
	ADDQ $32, SI
	SUBQ $8, DX
	JMP  cols8

doneSum:
	VZEROUPPER
	RET

// Constants of exp32 in kernels.go, in this order: expMin, expMax, log2e,
// ln2High, ln2Low, expC0 to expC5, 1, the integer 127, the sign bit.
DATA expConst<>+0(SB)/4, $0xc2aeac4f
DATA expConst<>+4(SB)/4, $0x42b00f34
DATA expConst<>+8(SB)/4, $0x3fb8aa3b
DATA expConst<>+12(SB)/4, $0x3f318000
DATA expConst<>+16(SB)/4, $0xb95e8083
DATA expConst<>+20(SB)/4, $0x39506967
DATA expConst<>+24(SB)/4, $0x3ab743ce
DATA expConst<>+28(SB)/4, $0x3c088908
DATA expConst<>+32(SB)/4, $0x3d2aa9c1
DATA expConst<>+36(SB)/4, $0x3e2aaaaa
DATA expConst<>+40(SB)/4, $0x3f000000
DATA expConst<>+44(SB)/4, $0x3f800000
DATA expConst<>+48(SB)/4, $0x0000007f
DATA expConst<>+52(SB)/4, $0x80000000
GLOBL expConst<>(SB), RODATA|NOPTR, $56

// EXP_LOAD fills Y4 to Y15 and EXP replaces Y0 by exp(Y0), using Y1, Y2 and Y3.
#define EXP_LOAD \
	VBROADCASTSS expConst<>+0(SB), Y4; \
	VBROADCASTSS expConst<>+4(SB), Y5; \
	VBROADCASTSS expConst<>+8(SB), Y6; \
	VBROADCASTSS expConst<>+12(SB), Y7; \
	VBROADCASTSS expConst<>+16(SB), Y8; \
	VBROADCASTSS expConst<>+20(SB), Y9; \
	VBROADCASTSS expConst<>+24(SB), Y10; \
	VBROADCASTSS expConst<>+28(SB), Y11; \
	VBROADCASTSS expConst<>+32(SB), Y12; \
	VBROADCASTSS expConst<>+36(SB), Y13; \
	VBROADCASTSS expConst<>+40(SB), Y14; \
	VBROADCASTSS expConst<>+44(SB), Y15

#define EXP \
	VMAXPS Y4, Y0, Y0; \
	VMINPS Y5, Y0, Y0; \
	VMULPS Y6, Y0, Y1; \
	VROUNDPS $0, Y1, Y1; \
	VFNMADD231PS Y7, Y1, Y0; \
	VFNMADD231PS Y8, Y1, Y0; \
	VMOVAPS Y9, Y2; \
	VFMADD213PS Y10, Y0, Y2; \
	VFMADD213PS Y11, Y0, Y2; \
	VFMADD213PS Y12, Y0, Y2; \
	VFMADD213PS Y13, Y0, Y2; \
	VFMADD213PS Y14, Y0, Y2; \
	VMULPS Y0, Y0, Y3; \
	VFMADD213PS Y0, Y3, Y2; \
	VADDPS Y15, Y2, Y2; \
	VCVTPS2DQ Y1, Y1; \
	VPBROADCASTD expConst<>+48(SB), Y3; \
	VPADDD Y3, Y1, Y1; \
	VPSLLD $23, Y1, Y1; \
	VMULPS Y1, Y2, Y0

// func expSumAVX2(s *float32, n int, m float32) float32
TEXT ·expSumAVX2(SB), NOSPLIT, $32-28
	MOVQ s+0(FP), DI
	MOVQ n+8(FP), CX
	SHRQ $3, CX
	EXP_LOAD
	VXORPS Y0, Y0, Y0
	VMOVUPS Y0, 0(SP)

loopExp:
	VMOVUPS (DI), Y0
	VBROADCASTSS m+16(FP), Y1
	VSUBPS Y1, Y0, Y0
	EXP
	VMOVUPS Y0, (DI)
	VADDPS 0(SP), Y0, Y1
	VMOVUPS Y1, 0(SP)
	ADDQ $32, DI
	DECQ CX
	JNZ  loopExp

	VHADDPS Y1, Y1, Y1
	VHADDPS Y1, Y1, Y1
	VEXTRACTF128 $1, Y1, X2
	VADDSS X2, X1, X1
	VMOVSS X1, ret+24(FP)
	VZEROUPPER
	RET

// func siluMulAVX2(gate, up *float32, n int)
TEXT ·siluMulAVX2(SB), NOSPLIT, $0-24
	MOVQ gate+0(FP), DI
	MOVQ up+8(FP), SI
	MOVQ n+16(FP), CX
	SHRQ $3, CX
	EXP_LOAD

loopSilu:
	VBROADCASTSS expConst<>+52(SB), Y1
	VXORPS (DI), Y1, Y0
	EXP
	VADDPS Y15, Y0, Y0
	VMOVUPS (DI), Y1
	VDIVPS Y0, Y1, Y1
	VMULPS (SI), Y1, Y1
	VMOVUPS Y1, (DI)
	ADDQ $32, DI
	ADDQ $32, SI
	DECQ CX
	JNZ  loopSilu
	VZEROUPPER
	RET
