package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// BenchmarkStreams measures the whole path of many streams: fake entry, fence,
// chunks, HTTP/1.1 over loopback and a client that counts events. The client
// shares the cores. tokens/s is over all streams.
func BenchmarkStreams(b *testing.B) {
	const tokens = 256
	for _, bc := range []struct {
		streams int
		step    time.Duration // between tokens; 0 for as fast as they are taken
	}{{1, 0}, {64, 0}, {512, 0}, {64, time.Millisecond}, {512, 10 * time.Millisecond}} {
		streams := bc.streams
		b.Run(fmt.Sprintf("streams=%d/step=%s", streams, bc.step), func(b *testing.B) {
			e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(tokens)}
			if bc.step > 0 {
				e.Gate = after(bc.step)
			}
			g, err := New(Config{Deployments: []session.Deployment{deploy(e)}})
			if err != nil {
				b.Fatal(err)
			}
			srv := httptest.NewServer(g.Handler())
			defer srv.Close()
			client := srv.Client()
			client.Transport.(*http.Transport).MaxIdleConnsPerHost = streams
			b.ReportAllocs()
			for b.Loop() {
				clients := pool.New()
				for range streams {
					clients.Go(func() { readStream(b, client, srv.URL, tokens) })
				}
				clients.Wait()
			}
			b.ReportMetric(float64(b.N)*float64(streams)*tokens/b.Elapsed().Seconds(), "tokens/s")
			client.CloseIdleConnections()
		})
	}
}

func readStream(b *testing.B, client *http.Client, url string, want int) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url+chatPath, strings.NewReader(`{`+hi+`,"stream":true}`))
	if err != nil {
		b.Error(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		b.Error(err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	n := 0
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			break
		}
		if err != nil && err != bufio.ErrBufferFull {
			b.Error(err)
			return
		}
		if len(line) > 6 && line[0] == 'd' {
			n++
		}
	}
	if n != want+2 { // the finish chunk and [DONE]
		b.Errorf("%d events", n)
	}
}
