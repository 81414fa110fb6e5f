package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// fakeServer is an OpenAI-compatible server with scripted answers: it solves
// "What is A + B?" and, as the model "broken", fails in the middle of a stream.
func fakeServer() *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny","object":"model"},{"id":"tiny-s","object":"model"}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", fakeChat)
	return httptest.NewServer(mux)
}

const fakeRouting = `{"policy":"r-stitch","models":["tiny-s","tiny-l"],"tokens":{"tiny-s":3,"tiny-l":1},"large_share":0.25,"provenance":[["tiny-s",3],["tiny-l",1]]}`

func fakeChat(w http.ResponseWriter, r *http.Request) {
	var req chatRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"bad JSON","type":"invalid_request_error","param":null,"code":null}}`)
		return
	}
	if req.Model == "none" {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"message":"there is no model \"none\"","type":"invalid_request_error","param":"model","code":"model_not_found"}}`)
		return
	}
	var a, b int
	last := req.Messages[len(req.Messages)-1].Content
	fmt.Sscanf(last, "What is %d + %d?", &a, &b)
	pieces := []string{"So\n", "The answer ", "is ", fmt.Sprintf("%d.", a+b)}
	if !req.Stream {
		text, _ := json.Marshal(strings.Join(pieces, ""))
		fmt.Fprintf(w, `{"choices":[{"message":{"role":"assistant","content":%s},"finish_reason":"stop"}],"usage":{"completion_tokens":4},"trctl":%s}`, text, fakeRouting)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, ": keep-alive\n\n")
	for i, piece := range pieces {
		if req.Model == "broken" && i == 2 {
			fmt.Fprint(w, "data: {\"error\":{\"message\":\"the entry model is gone\",\"code\":\"model_unavailable\"}}\n\ndata: [DONE]\n\n")
			return
		}
		if req.Model == "cut" && i == 2 {
			return
		}
		model := "tiny-s"
		if i == 3 {
			model = "tiny-l"
		}
		text, _ := json.Marshal(piece)
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%s},\"finish_reason\":null}],\"trctl\":{\"model\":%q}}\n\n", text, model)
	}
	fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"trctl\":%s}\n\ndata: [DONE]\n\n", fakeRouting)
}

func TestClientBase(t *testing.T) {
	for _, url := range []string{"http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"} {
		if got := newClient(url).base; got != "http://h:1" {
			t.Errorf("newClient(%q).base = %q", url, got)
		}
	}
}
