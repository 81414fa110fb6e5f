// Package handoff is the protocol between sub-services: who has the turn of a
// request, and the tokens and routing state that go with it. Keys and values
// never travel.
//
// It holds the frame, its codec, and the fence that decides whether a frame is
// applied. It owns no connection and starts no goroutine; worker/peer carries
// frames. Standard library only.
//
// # Turns
//
// One model has the turn of a request. A Handoff with hop h gives it away: the
// sender parks the sequence, the receiver owns hop h, reports what it commits
// with Progress frames of hop h, and gives the turn back (or on) with hop h+1.
//
//	entry                         collaborator
//	running ── Handoff h ───────▶ resident → running
//	parked  ◀─ Progress h ─────── running           (zero or more)
//	running ◀─ Handoff h+1 ────── resident
//	parked  ◀─ Nack h ─────────── (knows only Known ids; re-sent as hop h+1)
//	done    ── Release h ───────▶ gone
//
// A Release with Request 0 speaks of the link, not of a request: the sender
// closes it, and Code says why.
//
// # Layout, version 1
//
// All numbers are little-endian and of fixed size. i32 is never negative unless
// noted. There is no padding. A frame must end where its layout ends.
//
// On a stream every frame is preceded by its length: u32, 1 to MaxFrameSize,
// not counting the four bytes of the length.
//
// Hello. What stands before the session is the same in every version, so that two
// versions can agree, or refuse each other with all numbers; the rest is laid out as in
// the oldest version that the sender speaks. A link has the newest version that both
// sides speak.
//
//	 0  u8   kind = 1
//	 1  u8   flags: 1 if the oldest version follows
//	 2  u16  newest version that the sender speaks
//	[ 4  u16  oldest version, less than the newest; absent if it is the same]
//	 4  u64  session, not 0
//	12  u64  peer session
//	20  u64  ack
//	28  u32  credits
//	32  str  replica      (str: u8 length, at most MaxName, then bytes)
//	    str  model
//
// Ack.
//
//	 0  u8   kind = 6
//	 1  u8   flags = 0
//	 2  u64  ack
//	10  u32  credits
//
// Group. It tells a replica how many live requests it has to expect from the
// sender, for the thresholds of delayed batching. One is sent when the number has
// changed, or the usual time of a step by a quarter; the last one holds. It is
// numbered like a turn frame.
//
//	 0  u8   kind = 7
//	 1  u8   flags = 0
//	 2  u64  seq
//	10  i32  live requests
//	14  u32  time of a step, µs
//
// Turn frames (Handoff, Progress, Nack, Release) share a head of 28 bytes.
//
//	 0  u8   kind = 2, 3, 4, 5
//	 1  u8   flags: which sections follow (below)
//	 2  u64  seq
//	10  u64  request
//	18  u32  epoch
//	22  u32  hop
//	26  u8   from, less than MaxModels
//	27  u8   to, less than MaxModels
//
// Handoff and Progress go on with the tokens, then the sections whose flag is
// set, in this order. A flag is set exactly if its section is not empty, so a
// frame has one encoding.
//
//	28  i32  base
//	32  u32  count, at most MaxTokens; base + count fits i32
//	36  count × (i32 id, u8 model)
//
//	flag  section   layout
//	0x01  done      u8, 1 to 4                                  (Handoff)
//	0x02  seen      u8 n, 1 to MaxModels; n × i32               (both)
//	0x04  state     u8 n, 1 to MaxState; n bytes                (both)
//	0x08  blob      u16 n, 1 to MaxBlob; n bytes                (Handoff)
//	0x10  first     str deployment; i32 prompt length;          (Handoff, base = 0)
//	                str entry; i64 age; 32 bytes salt;
//	                f32 temperature; f32 top-p; i32 top-k;
//	                u64 seed; i32 max tokens; i32 logprobs (−1 to MaxLogprobs);
//	                u8 n, at most MaxStopIDs; n × i32 stop id;
//	                f32 min-p; f32 repetition, frequency and
//	                presence penalty; i32 min tokens;
//	                u16 n, at most MaxBiases;
//	                n × (i32 id, f32 bias), ids ascending
//	0x40  override  str policy; u8 parts: 1 threshold, 2 share; (Handoff with first)
//	                f64 for each part
//	0x80  version   u64, not 0                                  (Handoff with first)
//	0x20  logprobs  count × (f32, u8 n, at most MaxLogprobs,    (both)
//	                n × (i32 id, f32))
//
// Nack and Release have no flags.
//
//	28  i32  known                                              (Nack)
//	28  u8   done; str code                                     (Release)
//
// The usual hop of a two-model deployment with k new tokens takes 45 + 5k
// bytes: 36 of head, 5k of tokens, 9 of seen. A policy state of n bytes adds
// 1 + n.
package handoff
