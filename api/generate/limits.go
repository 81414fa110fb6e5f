package generate

// Size limits, checked before anything is allocated.
const (
	// MaxRequestBytes bounds an encoded Request. A client's body is at most
	// 4 MiB; the rest is room for escapes and for Resume.
	MaxRequestBytes = 16 << 20
	// MaxErrorBytes bounds the JSON body of an error before admission.
	MaxErrorBytes = 64 << 10
	// MaxEventBytes bounds the payload of one event frame.
	MaxEventBytes = 8 << 20
	// MaxIDs bounds the prompt ids, and the committed tokens, of one request.
	MaxIDs = 1 << 20
	// MaxMessages bounds the turns of a chat.
	MaxMessages = 4096
	// MaxBatch bounds the tokens of one event.
	MaxBatch = 4096
	// MaxText bounds the text or the bytes of one token, and every message of an Error.
	MaxText = 1<<16 - 1
	// MaxName bounds deployment, replica and model names, and error codes.
	MaxName = 256
	// MaxModels bounds the models of a deployment.
	MaxModels = 16
	// MaxState bounds the policy's state.
	MaxState = 64
	// MaxTop bounds the alternatives of one position.
	MaxTop = 64
	// SaltBytes is the length of a salt.
	SaltBytes = 32
	// MaxSession bounds the name of a conversation.
	MaxSession = 64
)

// PlacementBits is the number of the low bits of a request's id that choose
// among the replicas of a collaborator.
const PlacementBits = 16
