package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What Millstream does not have yet, and says so at once.
func playRefusals() {
	play("no-transactions", noTransactions)
}

func noTransactions(ctx context.Context) error {
	producer := client(kgo.TransactionalID("t"), kgo.AllowAutoTopicCreation())
	defer producer.Close()
	err := producer.BeginTransaction()
	if err == nil {
		err = producer.ProduceSync(ctx, &kgo.Record{Topic: "t", Value: []byte("v")}).FirstErr()
	}
	if !errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		return fmt.Errorf("expected a refusal of the transactional id, got %v", err)
	}
	return nil
}
