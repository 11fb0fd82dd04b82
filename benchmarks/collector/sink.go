package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
)

const (
	roleSink = "sink"
	protobuf = "application/x-protobuf"
)

// listen is the sink. It prints where it listens, and then a line for each request that it has answered. Bodies are
// kept as they come, each behind its length; requests at the same time may share a sync, as the disk likes.
func listen(file string) error {
	kept, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer kept.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", listener.Addr())
	go func() {
		untilStdinEnds()
		listener.Close()
	}()
	err = http.Serve(listener, http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		if err := keep(kept, request); err != nil {
			fmt.Fprintln(os.Stderr, "sink:", err)
			http.Error(answer, err.Error(), http.StatusInternalServerError)
			return
		}
		answer.Header().Set("Content-Type", protobuf)
		answer.WriteHeader(http.StatusOK)
		http.NewResponseController(answer).Flush()
		fmt.Println("answered")
	}))
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func keep(kept *os.File, request *http.Request) error {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return err
	}
	framed := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	if _, err := kept.Write(append(framed, body...)); err != nil {
		return err
	}
	return kept.Sync()
}

// arrived says how many different rows the sink's file has, by the number that each carries.
func arrived(file string) (int, error) {
	kept, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer kept.Close()
	rows, reader := map[int64]bool{}, bufio.NewReader(kept)
	for {
		var size uint32
		switch err := binary.Read(reader, binary.BigEndian, &size); err {
		case nil:
		case io.EOF:
			return len(rows), nil
		default:
			return 0, err
		}
		body := make([]byte, size)
		if _, err := io.ReadFull(reader, body); err != nil {
			return 0, err
		}
		if err := numbers(body, rows); err != nil {
			return 0, err
		}
	}
}

func numbers(body []byte, into map[int64]bool) error {
	request := plogotlp.NewExportRequest()
	if err := request.UnmarshalProto(body); err != nil {
		return err
	}
	for _, resource := range request.Logs().ResourceLogs().All() {
		for _, scope := range resource.ScopeLogs().All() {
			for _, record := range scope.LogRecords().All() {
				number, _ := record.Attributes().Get("n")
				into[number.Int()] = true
			}
		}
	}
	return nil
}
