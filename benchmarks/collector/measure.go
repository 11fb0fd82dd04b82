package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

const (
	patience = 60 * time.Second // for a start, for an answer, for an end
	note     = "from the first request fed over HTTP to the last that the sink has synced and answered; " +
		"each request is synced into the queue, taken from it and struck off on the way"
)

// found is what is printed. After FedS seconds the last request was in the queue.
type found struct {
	Rows    int     `json:"rows"`
	S       float64 `json:"s"`
	FedS    float64 `json:"fed_s"`
	Senders int     `json:"senders"`
	Note    string  `json:"note"`
}

func measure(folder, file string, batch, senders int) (result found, err error) {
	bodies, rows, err := requests(file, batch)
	if err != nil {
		return found{}, err
	}
	own, err := os.MkdirTemp(folder, "run-")
	if err != nil {
		return found{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(own)) }()
	kept := filepath.Join(own, "kept")
	fed, all, err := carried(own, kept, bodies, senders)
	if err != nil {
		return found{}, err
	}
	count, err := arrived(kept)
	if err == nil && count != rows {
		err = fmt.Errorf("%d different rows arrived of %d", count, rows)
	}
	return found{count, all.Seconds(), fed.Seconds(), senders, note}, err
}

// carried says how long it took until all was in the queue, and until all was answered by the sink.
func carried(own, kept string, bodies [][]byte, senders int) (fed, all time.Duration, err error) {
	sink, err := start(nil, roleSink, kept)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, sink.stop()) }()
	url, err := sink.line()
	if err != nil {
		return 0, 0, err
	}
	address, err := freeAddress()
	if err != nil {
		return 0, 0, err
	}
	collector, err := start([]string{
		"COLLECTOR_ADDRESS=" + address,
		"COLLECTOR_QUEUE=" + filepath.Join(own, "queue"),
		"COLLECTOR_SINK=" + url,
		"COLLECTOR_SENDERS=" + strconv.Itoa(senders),
	}, roleCollector)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, collector.stop()) }()
	if err := collector.accepts(address); err != nil {
		return 0, 0, err
	}
	return timed(address, bodies, senders, sink)
}

func timed(address string, bodies [][]byte, senders int, sink *process) (fed, all time.Duration, err error) {
	began, done := time.Now(), make(chan error, 1)
	go func() {
		err := feed("http://"+address+"/v1/logs", bodies, senders)
		fed = time.Since(began)
		done <- err
	}()
	for answered := 0; answered < len(bodies); {
		select {
		case err := <-done:
			if err != nil {
				return 0, 0, err
			}
			done = nil
		case _, is := <-sink.lines:
			if !is {
				return 0, 0, fmt.Errorf("the sink ended after %d of %d requests", answered, len(bodies))
			}
			answered++
		case <-time.After(patience):
			return 0, 0, fmt.Errorf("the sink answered %d of %d requests, and no more", answered, len(bodies))
		}
	}
	all = time.Since(began)
	if done != nil {
		err = <-done
	}
	return fed, all, err
}

// feed posts all bodies over so many connections, on each one after another.
func feed(url string, bodies [][]byte, lines int) error {
	client := &http.Client{
		Timeout:   patience,
		Transport: &http.Transport{MaxIdleConnsPerHost: lines, DisableCompression: true},
	}
	defer client.CloseIdleConnections()
	left, ended := make(chan []byte, len(bodies)), make(chan error, lines)
	for _, body := range bodies {
		left <- body
	}
	close(left)
	for range lines {
		go func() {
			for body := range left {
				if err := post(client, url, body); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	var err error
	for range lines {
		err = errors.Join(err, <-ended)
	}
	return err
}

func post(client *http.Client, url string, body []byte) error {
	answer, err := client.Post(url, protobuf, bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("the Collector answered %s: %s", answer.Status, said)
	}
	return err
}
