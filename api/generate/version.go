package generate

import (
	"fmt"
	"mime"
	"strconv"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/protocol"
)

// mediaPrefix is what the media types of the event stream begin with. The number of
// the version follows.
const mediaPrefix = "application/vnd.trctl.events.v"

// ContentType is the media type of a version of the event stream.
func ContentType(version int) string { return mediaPrefix + strconv.Itoa(version) }

// Accept is what a gateway accepts (the header of that name): the versions of this
// build, the newest first. A request that older versions cannot express would leave
// these out.
func Accept() string { return accept(protocol.Generate()) }

func accept(r protocol.Range) string {
	types := make([]string, 0, r.Newest-r.Oldest+1)
	for v := r.Newest; v >= r.Oldest; v-- {
		types = append(types, ContentType(v))
	}
	return strings.Join(types, ", ")
}

// Choose is the version in which an entry answers a request with an Accept header: the
// newest that both sides speak. No header, or one for anything, is taken for the oldest
// version. The error has CodeVersion and is of no use to a client.
func Choose(accept string) (int, *Error) {
	ours := protocol.Generate()
	if accept = strings.TrimSpace(accept); accept == "" || accept == "*/*" {
		return ours.Oldest, nil
	}
	var theirs protocol.Range
	for text := range strings.SplitSeq(accept, ",") {
		v, ok := version(text)
		if !ok {
			continue
		}
		if theirs.Newest == 0 {
			theirs = protocol.Range{Oldest: v, Newest: v}
		}
		theirs = protocol.Range{Oldest: min(theirs.Oldest, v), Newest: max(theirs.Newest, v)}
	}
	v, err := protocol.Agree(protocol.NameGenerate, ours, theirs)
	if err != nil {
		return 0, &Error{Code: CodeVersion, Message: err.Error(), Retryable: true}
	}
	return v, nil
}

// CheckContentType returns why an answer's Content-Type is none that this build reads.
func CheckContentType(text string) error {
	ours := protocol.Generate()
	v, ok := version(text)
	if !ok {
		return fmt.Errorf("content type %.64q is no event stream", text)
	}
	_, err := protocol.Agree(protocol.NameGenerate, ours, protocol.Range{Oldest: v, Newest: v})
	return err
}

// version is the number in a media type of the event stream.
func version(text string) (int, bool) {
	media, _, err := mime.ParseMediaType(text)
	if err != nil {
		return 0, false
	}
	digits, ours := strings.CutPrefix(media, mediaPrefix)
	v, err := strconv.ParseUint(digits, 10, 16)
	if !ours || err != nil || v == 0 || digits != strconv.FormatUint(v, 10) {
		return 0, false
	}
	return int(v), true
}
