package subservice

import (
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
)

// sequence is a request as this replica knows it. The decode loop owns it.
type sequence struct {
	id    uint64
	epoch uint32
	// hop is that of the last hand-off sent or applied, or at the entry of the last
	// one that somebody has said to have taken. See renew for its numbering.
	hop uint32
	dep *deployment
	// via is the policy that routes the request, of the deployment's.
	via    *route
	params sampling.Params
	// q is the policies' view; q.Out aliases ids[q.PromptLen:].
	q policies.Req
	// ids are all committed ids, the prompt first. Invariant: the scheduler knows
	// a prefix of them, all of them unless the turn is away.
	ids   []int32
	fence handoff.Fence

	// age is when the entry took the request (Unix time, ns), salt the key of its
	// cached pages.
	age  int64
	salt [32]byte

	// seen[k] is the number of ids that model k has; seen[self] is len(ids).
	seen [policies.MaxModels]int32
	// replica[k] is the replica that serves model k for this request, once chosen.
	replica [policies.MaxModels]string

	// away says that another model has the turn; turn is which one.
	away bool
	turn policies.ModelID
	// sent says that the hand-off of the turn was given to a link, by whomever; if
	// not, it waits for one since lost.
	sent bool
	lost time.Duration
	// kept says that the last step here committed a token.
	kept bool
	// done says that the hand-off of the turn ends the answer.
	done handoff.Done
	// blob is the payload that the policy added to the hand-off of the turn.
	blob []byte

	entry  *entryState
	collab *collabState
	course course
}

// entryState is what only the entry of a request keeps.
type entryState struct {
	stream  *stream
	decoder Decoder
	echo    *echo // nil unless the prompt is wanted back
	// servedBy are the replicas that serve the other models for the request, as far
	// as they count its requests. Nil until it is admitted.
	servedBy []string
	// held says that the gateway is behind and the sequence waits for it, parked.
	held bool
	// cacheTold says that the prefix hit was reported.
	cacheTold bool
	// holder is the replica that has the turn, or has last told that it has; empty
	// if the turn is here or was not sent. The sequence's hop is the holder's.
	holder string
	// news is the newest hop that was heard of, at least the sequence's. What is
	// known of the answer, the turn and the policy's state is as of then.
	news uint32
	// holdings are the replicas that may have something of the request.
	holdings []holding
	// renewals counts the tries begun since the sequence had renewedAt ids.
	renewals, renewedAt int
	// reportedTurn and reportedState are what the gateway knows.
	reportedTurn  policies.ModelID
	reportedState policies.State
}

// collabState is what only a collaborator keeps.
type collabState struct {
	// entry is the replica that owns the request.
	entry string
	// logprobs belong to the answer's tokens, if they were asked for. They are kept,
	// since the entry may not have got what was sent to it or by a third model.
	logprobs []handoff.Logprob
	// sampling is the entry's, in its ids, for a first visit to a third model.
	sampling sampling.Params
}

// sid is the scheduler's name of the sequence.
func (q *sequence) sid() scheduler.ID { return scheduler.ID(q.id) }

// commit appends one id that model wrote.
func (q *sequence) commit(id int32, model policies.ModelID) {
	q.ids = append(q.ids, id)
	q.q.Out = q.ids[q.q.PromptLen:]
	q.q.Models = append(q.q.Models, model)
}

// finished says whether the last committed token ends the answer, and how.
func (q *sequence) finished() handoff.Done {
	n := len(q.q.Out)
	switch {
	case n == 0 && q.params.MaxTokens > 0:
		return handoff.NotDone
	case n > 0 && q.params.Stops(q.q.Out[n-1]):
		return handoff.DoneStop
	case n >= int(q.params.MaxTokens):
		return handoff.DoneLength
	}
	return handoff.NotDone
}

// seqConfig is what the executor needs to know of the sequence.
func (q *sequence) seqConfig() executor.SeqConfig {
	return executor.SeqConfig{Sampling: q.params, Model: uint8(q.q.Self), PromptLen: q.q.PromptLen}
}

// finishOf maps the end of an answer to the gateway's word for it.
func finishOf(d handoff.Done) generate.Finish {
	if d == handoff.DoneLength {
		return generate.FinishLength
	}
	return generate.FinishStop
}
