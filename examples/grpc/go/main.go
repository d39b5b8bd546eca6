// QuiverMQ by gRPC from Go, without any code of QuiverMQ: topics, messages, errors, Arrow, a session.
//
//	go build -o bin/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
//	PATH=$PWD/bin:$PATH protoc -I ../../../proto --go_out=. --go-grpc_out=. \
//	    --go_opt=Mquiver/v1/quiver.proto=./quiverv1 --go-grpc_opt=Mquiver/v1/quiver.proto=./quiverv1 \
//	    quiver/v1/quiver.proto
//	go run . 127.0.0.1:7650
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	quiver "example/quiverv1"
)

const topic = "from-go"

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer connection.Close()
	client := quiver.NewQuiverClient(connection)

	_, err = client.CreateTopic(ctx, &quiver.CreateTopicRequest{Topic: topic, Partitions: 1})
	check(err)
	plain(ctx, client)
	refused(ctx, client)
	columnar(ctx, client)
	pushed(ctx, client)
}

func plain(ctx context.Context, client quiver.QuiverClient) {
	stored, err := client.Produce(ctx, &quiver.ProduceRequest{Topic: topic, Messages: []*quiver.NewMessage{
		{Value: []byte("hello"), Key: []byte("k"), Headers: map[string][]byte{"lang": []byte("go")}},
		{Value: []byte("world")},
	}})
	check(err)
	for _, position := range stored.Positions {
		fmt.Println("stored at", position.Offset)
	}
	polled, err := client.Poll(ctx, &quiver.PollRequest{Topic: topic, Group: "go", WaitMs: 5000})
	check(err)
	var selections []*quiver.Selection
	for _, delivery := range polled.Deliveries {
		for _, message := range delivery.Messages {
			fmt.Println("polled", string(message.Value))
		}
		selections = append(selections, &quiver.Selection{Lease: delivery.Lease})
	}
	_, err = client.Ack(ctx, &quiver.AckRequest{Topic: topic, Group: "go", Selections: selections})
	check(err)
	fmt.Println("acknowledged")
}

// The details of a status, as every Go program reads them.
func refused(ctx context.Context, client quiver.QuiverClient) {
	_, err := client.Fetch(ctx, &quiver.FetchRequest{Topic: "nowhere"})
	found := status.Convert(err)
	for _, detail := range found.Details() {
		switch told := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Println("refused", found.Code(), told.Reason, told.Metadata["retriable"])
		case *quiver.Error:
			fmt.Println("detail", told.Code)
		}
	}
}

// Batches by an Arrow library: written by it, stored as they are, read by it.
func columnar(ctx context.Context, client quiver.QuiverClient) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "value", Type: arrow.BinaryTypes.Binary}}, nil)
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for _, value := range []string{"one", "two", "three"} {
		builder.Field(0).(*array.BinaryBuilder).Append([]byte(value))
	}
	var sent bytes.Buffer
	writer := ipc.NewWriter(&sent, ipc.WithSchema(schema))
	check(writer.Write(builder.NewRecordBatch()))
	check(writer.Close())
	partition := uint32(0)
	_, err := client.Produce(ctx, &quiver.ProduceRequest{Topic: topic, Partition: &partition, Arrow: sent.Bytes()})
	check(err)
	read, err := client.Fetch(ctx, &quiver.FetchRequest{
		Topic: topic, Start: &quiver.FetchRequest_Offset{Offset: 2}, Format: quiver.Format_FORMAT_ARROW,
	})
	check(err)
	for _, batch := range read.Batches {
		reader, err := ipc.NewReader(bytes.NewReader(batch.Stream))
		check(err)
		for reader.Next() {
			column := reader.RecordBatch().Column(0).(*array.Binary)
			for row := 0; row < column.Len(); row++ {
				fmt.Println("arrow", string(column.Value(row)))
			}
		}
		check(reader.Err())
	}
}

// One stream: messages pushed within credit, and acknowledged.
func pushed(ctx context.Context, client quiver.QuiverClient) {
	session, err := client.Session(ctx)
	check(err)
	hello := &quiver.Hello{Client: "example", Group: "pushed"}
	check(session.Send(&quiver.Request{Id: 1, Body: &quiver.Request_Hello{Hello: hello}}))
	subscribe := &quiver.Subscribe{Topic: topic, Credit: 5}
	check(session.Send(&quiver.Request{Id: 2, Body: &quiver.Request_Subscribe{Subscribe: subscribe}}))
	seen := 0
	for seen < 5 {
		response, err := session.Recv()
		check(err)
		if refusal := response.GetError(); refusal != nil {
			log.Fatal(refusal.Message)
		}
		for _, delivery := range response.GetPush().GetDeliveries() {
			seen += len(delivery.Messages)
			ack := &quiver.AckRequest{Topic: topic, Selections: []*quiver.Selection{{Lease: delivery.Lease}}}
			check(session.Send(&quiver.Request{Id: uint64(10 + seen), Body: &quiver.Request_Ack{Ack: ack}}))
		}
	}
	check(session.CloseSend())
	fmt.Println("pushed", seen)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
