package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
)

type row struct {
	TS      time.Time `json:"ts"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
	N       int64     `json:"n"`
}

// requests are the rows of a file as bodies of OTLP, `batch` rows each, and how many rows that is.
func requests(file string, batch int) ([][]byte, int, error) {
	lines, err := os.Open(file)
	if err != nil {
		return nil, 0, err
	}
	defer lines.Close()
	var bodies [][]byte
	rows, decoder := 0, json.NewDecoder(lines)
	for {
		body, count, err := request(decoder, batch)
		if err != nil {
			return nil, 0, err
		}
		if count == 0 {
			return bodies, rows, nil
		}
		bodies, rows = append(bodies, body), rows+count
	}
}

func request(decoder *json.Decoder, batch int) ([]byte, int, error) {
	logs := plog.NewLogs()
	resource := logs.ResourceLogs().AppendEmpty()
	resource.Resource().Attributes().PutStr("service.name", "benchmarks")
	records := resource.ScopeLogs().AppendEmpty().LogRecords()
	for records.Len() < batch {
		var found row
		if err := decoder.Decode(&found); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, 0, err
		}
		record := records.AppendEmpty()
		record.SetTimestamp(pcommon.NewTimestampFromTime(found.TS))
		record.SetSeverityText(found.Level)
		record.Body().SetStr(found.Message)
		record.Attributes().PutInt("n", found.N)
	}
	body, err := plogotlp.NewExportRequestFromLogs(logs).MarshalProto()
	return body, records.Len(), err
}
