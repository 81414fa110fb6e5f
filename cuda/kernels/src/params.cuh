// Parameter structs and step arrays, shared with Go (params.go), and the model's dimensions.
//
// Pointers are 8 bytes and come first; everything else is 4 bytes, except the 64-bit counters. Go's layout is compared
// with these definitions by compiling static asserts (layout_test.go).
#pragma once
#include "timeline.cuh"

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short bf16;

#define INF __uint_as_float(0x7f800000u)

// Model dimensions come as -D constants. A kernel that needs none compiles without them.
#ifdef DIM_C
constexpr int C = DIM_C;     // hidden size
constexpr int F = DIM_F;     // feed-forward size
constexpr int HQ = DIM_HQ;   // query heads
constexpr int HK = DIM_HK;   // key and value heads
constexpr int D = DIM_D;     // head size
constexpr int P = DIM_P;     // token slots of a page
constexpr int G = HQ / HK;   // query heads that share a key head
constexpr int V = DIM_V;     // real vocabulary
static_assert(C % 8 == 0 && F % 8 == 0, "rows are read 16 bytes at a time");
static_assert(HQ % HK == 0 && G >= 1 && G <= 8, "group of 1 to 8");
static_assert(D == 64 || D == 128, "head size");
static_assert(P % 8 == 0, "page size");
#endif

// StepHead is the start of a step's descriptor. Kernels check its counts instead of launch parameters, so that a
// captured graph can be replayed with other numbers.
struct StepHead {
	u64 step;
	int tokens;
	int samples;
	int items;
	int patches;
	int ring; // entry of the rings in host memory that this step has
	int pad;
};

// Patch sets table[slot][index] = page.
struct Patch {
	int slot, index, page;
};

// AttnItem is one tile of queries: ntok tokens of one sequence, starting at index token of the step and at position pos,
// over key chunks [chunk, chunk_end) of spans runs of 64 positions each, a power of two. partial is the row of the partial
// arrays where the tile's first row of chunk 0 goes, chunk 1 follows; or -1 to write the output. Bit g of whole says that the
// four chunks from 4 g on make one partial, in the place of the first.
struct AttnItem {
	int token, ntok, pos, slot, chunk, chunk_end, partial;
	int combine; // of its tile, with partials: which counter
	int spans;
	int fresh; // the first position that the sequence has new in this step
	int parts; // the tile's items, with partials
	u32 whole;
};

// Where a token's id comes from: the descriptor, or what was last sampled for its slot.
constexpr int SOURCE_GIVEN = 0, SOURCE_LAST = 1;

// Sample is one position to sample from, or to score a given id at.
struct Sample {
	int token;      // index into the step's tokens
	u32 position;   // of the new token
	u32 seed_lo, seed_hi;
	u32 model;
	float temperature; // 0 is greedy
	float top_p;
	int top_k;
	int top;        // entries of the top list wanted, 0..128
	u32 want;       // WANT_*
	int given;      // the id to score, or -1 to sample one
	int adjust_at, adjust_n; // entries of the adjustments, behind mix_n of the mixture
	float min_p;    // 0 is off
	float repetition, frequency, presence; // 1 or 0, 0, 0 are off
	int slot;       // whose next row may feed the token unseen by the host, or -1
	float mix;      // this model's weight in a mixture of two distributions, above 0; 0 for none
	int mix_n;
};

// Adjust is what applies to one id's logit at one sampled position. Of an entry of the mixture, id and bias count: bias is
// what the other model adds to the probability.
struct Adjust {
	int id;
	u32 kind; // ADJUST_*
	int n;    // times in the answer so far
	float bias;
};

constexpr u32 ADJUST_SEEN = 1, ADJUST_BANNED = 2;
constexpr u32 WANT_SCORE = 1, WANT_HIDDEN = 2, WANT_LOGITS = 4, WANT_NO_TOP = 8;
constexpr int MAX_TOP = 128;

// Stat is what logitstats finds about one row of raw logits, and what sample and routerend add to it.
struct Stat {
	float max, lse, entropy, margin;
	int argmax;
	int flags; // 1: NaN or +Inf among the logits
	int token;
	float logprob;
	float score;
	int pad;
};

struct TopEntry {
	int id;
	float logit;
};

struct PrepParams {
	const void *in; // mapped host memory, ring entries of entry_bytes
	void *out;      // the layout of an entry on the device, from which the other kernels read
	int *table;     // [slots][max_pages]
	int *slots;     // [T] key slot of each token: page * P + offset
	u32 *turn;      // steps so far
	const int *last; // [slots] what was last sampled
	int ids_at, source_at, pos_at, owner_at, patches_at, items_at, samples_at; // byte offsets
	int max_pages;
	int page_size;
	int entry_bytes;
	int ring;
	int pad;
};
static_assert(sizeof(PrepParams) == 96, "PrepParams");

struct EmbedParams {
	const StepHead *head;
	const bf16 *table; // [rows][C]
	const int *ids;    // [T]
	float *x;          // [T][C]
};
static_assert(sizeof(EmbedParams) == 32, "EmbedParams");

struct RmsnormParams {
	const int *count;
	float *x;           // [T][C] residual stream
	const float *delta; // [T][C] added first, or null
	const bf16 *weight; // [C]
	const Sample *samples; // not null: row r is token samples[first + r].token, and x is left alone
	bf16 *out;          // [T][C]
	float *out32;       // [T][C] or null
	float eps;
	int first;          // with samples: row 0 is sample first
	int late, pad;      // 1: the next kernel begins when the one before has ended
};
static_assert(sizeof(RmsnormParams) == 72, "RmsnormParams");

// HeadsParams is what makes queries, keys and values of a product.
struct HeadsParams {
	const float *qkv;    // [T][(HQ + 2 HK) D]
	const bf16 *bias;    // [(HQ + 2 HK) D] or null
	const bf16 *q_norm;  // [D] or null
	const bf16 *k_norm;  // [D] or null
	const float *rope;   // [max positions][D/2][2] cos, sin
	float eps;
	int pad;
};

struct QkvpostParams {
	const StepHead *head;
	const int *pos;      // [T]
	const int *slots;    // [T], -1 stores nothing
	bf16 *q;             // [T][HQ][D]
	bf16 *cache;         // [N][2][HK][P][D] of this layer
	HeadsParams heads;
};
static_assert(sizeof(QkvpostParams) == 88, "QkvpostParams");

struct AttnParams {
	const StepHead *head;
	const AttnItem *items;
	const bf16 *q;       // [T][HQ][D]
	bf16 *cache;         // [N][2][HK][P][D]
	const int *table;    // [slots][max_pages]
	bf16 *out;           // [T][HQ][D]
	float *part_o;       // [rows][HK][D]
	float *part_ml;      // [rows][HK][2] maximum (base 2) and sum
	u32 *arrived;        // [tiles with partials][HK] items that are done, 0 before and after
	int max_pages;
	float scale;         // of the scores, times log2 e
	HeadsParams heads;   // of a kernel that makes queries, keys and values itself; it appends to cache
	int last, pad;       // 1: the next kernel begins when blocks end
};
static_assert(sizeof(AttnParams) == 136, "AttnParams");

struct MatmulParams {
	const int *count; // T
	const bf16 *w;    // [N][K]
	const bf16 *x;    // [T][K]
	void *y;          // [T][ldy] f32, or bf16 where the product ends in the gate
	u32 *claims;      // tiles of band that were claimed, 0 before and after; or null
	float *partial;   // of panel in parts: [tiles][passes][128 PANEL_T]
	u32 *arrived;     // of panel in parts: [tiles] parts that are done, 0 before and after
	int n, k, ldy;
	int late; // 1: the next kernel begins after the kernels before this one have ended, so that it may use their results at once
	int passes;       // of panel, over K
	int unused;       // for the size, a multiple of 8
};
static_assert(sizeof(MatmulParams) == 80, "MatmulParams");

struct SilumulParams {
	const StepHead *head;
	const float *gu; // [T][2F] gate, then up
	bf16 *out;       // [T][F]
};
static_assert(sizeof(SilumulParams) == 24, "SilumulParams");

// LogitPart is what logitpart finds about a part of a row.
struct LogitPart {
	float max, second;
	float sum, weighted; // of exp(z - max) and (z - max) exp(z - max)
	int argmax;
	int bad;
};

constexpr int LOGIT_PARTS = 32; // of a row

struct LogitpartParams {
	const StepHead *head;
	const float *logits; // [S][ld]
	LogitPart *parts;    // [S of the block][LOGIT_PARTS]
	int ld;
	int first; // row 0 of logits is sample first
};
static_assert(sizeof(LogitpartParams) == 32, "LogitpartParams");

struct LogitstatsParams {
	const StepHead *head;
	const Sample *samples;
	const float *logits; // [S][ld]
	const LogitPart *parts;
	Stat *stats;         // [S]
	TopEntry *top;       // [S][MAX_TOP]
	int ld;
	int first; // row 0 of logits is sample first
};
static_assert(sizeof(LogitstatsParams) == 56, "LogitstatsParams");

struct AdjustParams {
	const StepHead *head;
	const Sample *samples;
	const Adjust *adjusts; // mapped host memory, ring entries of ring_entries each
	float *saved;          // [adjustments] logits as they were
	float *logits;
	Stat *stats;
	int ld;
	int first;  // row 0 of logits is sample first
	int settle; // 1: put the logits back and take the log-probability of the token
	int ring_entries;
};
static_assert(sizeof(AdjustParams) == 64, "AdjustParams");

struct SampleParams {
	const StepHead *head;
	const Sample *samples;
	const float *logits;
	Stat *stats;
	int *last; // [slots] the token sampled
	int ld;
	int first; // row 0 of logits is sample first
};
static_assert(sizeof(SampleParams) == 48, "SampleParams");

struct PublishParams {
	const StepHead *head;
	const Sample *samples;
	const Stat *stats;
	const TopEntry *top;
	const float *hidden;  // [S][C]
	const float *logits;  // [S][ld]
	Stat *out_stats;      // mapped host memory from here on
	TopEntry *out_top;
	float *out_hidden;
	float *out_logits;
	u64 *out_step;        // completion flag, or null when more samples follow
	u32 *arrived;         // blocks that are done, in device memory, 0 before and after
	u64 ring_bytes;       // between the entries of the ring that the out arrays lie in; the flag is one for all
	int c, v, ld;
	int first;            // row 0 of hidden and logits is sample first
};
static_assert(sizeof(PublishParams) == 120, "PublishParams");

struct HashfillParams {
	bf16 *out;
	u64 key;
	u64 first; // index of out[0] in its tensor
	u64 n;
	float scale, offset;
};
static_assert(sizeof(HashfillParams) == 40, "HashfillParams");

struct ConvertParams {
	const void *in;
	bf16 *out;
	u64 n;
	int from; // 1: float32, 2: float16
	int pad;
};
static_assert(sizeof(ConvertParams) == 32, "ConvertParams");
