package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func transactional(id string, options ...kgo.Opt) *kgo.Client {
	return client(append(options, kgo.TransactionalID(id))...)
}

// write sends one record a value to partition 0, in a transaction that ends so.
func write(ctx context.Context, producer *kgo.Client, topic string, end kgo.TransactionEndTry, values ...string) error {
	if err := producer.BeginTransaction(); err != nil {
		return err
	}
	for _, value := range values {
		record := &kgo.Record{Topic: topic, Value: []byte(value)}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
	}
	return producer.EndTransaction(ctx, end)
}

// values are what a reader gets up to the topic's last offset, in order.
func values(ctx context.Context, topic string, isolation kgo.IsolationLevel, wanted int) ([]string, error) {
	reader := client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(isolation))
	defer reader.Close()
	taken, err := take(ctx, reader, wanted)
	if err != nil {
		return nil, err
	}
	found := []string{}
	for _, record := range taken {
		found = append(found, string(record.Value))
	}
	return found, nil
}

func expect(ctx context.Context, topic string, isolation kgo.IsolationLevel, wanted ...string) error {
	found, err := values(ctx, topic, isolation, len(wanted))
	if err == nil && !slices.Equal(found, wanted) {
		err = fmt.Errorf("read %v instead of %v", found, wanted)
	}
	return err
}

func transactions(ctx context.Context) error {
	topic, err := create(ctx, "transactions", 1)
	if err != nil {
		return err
	}
	producer := transactional(topic)
	defer producer.Close()
	err = errors.Join(
		write(ctx, producer, topic, kgo.TryCommit, "a", "b"),
		write(ctx, producer, topic, kgo.TryAbort, "c", "d"),
		write(ctx, producer, topic, kgo.TryCommit, "e"),
		expect(ctx, topic, kgo.ReadCommitted(), "a", "b", "e"),
		expect(ctx, topic, kgo.ReadUncommitted(), "a", "b", "c", "d", "e"),
	)
	return err
}

// fencedProducer: a second bearer of a transactional id ends the first one's transaction, and the first hears of it.
// The second one's first records fail while that transaction is ended, on Kafka as well: franz-go does not ask again.
func fencedProducer(ctx context.Context) error {
	topic, err := create(ctx, "zombie", 1)
	if err != nil {
		return err
	}
	zombie := transactional(topic)
	defer zombie.Close()
	if err := zombie.BeginTransaction(); err != nil {
		return err
	}
	if err := zombie.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("lost")}).FirstErr(); err != nil {
		return err
	}
	successor := transactional(topic)
	defer successor.Close()
	for {
		err := write(ctx, successor, topic, kgo.TryCommit, "kept")
		if err == nil {
			break
		}
		if !errors.Is(err, kerr.ConcurrentTransactions) {
			return err
		}
		if err := successor.EndTransaction(ctx, kgo.TryAbort); err != nil {
			return err
		}
	}
	err = zombie.EndTransaction(ctx, kgo.TryCommit)
	if !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		return fmt.Errorf("the first producer heard %w", err)
	}
	return expect(ctx, topic, kgo.ReadCommitted(), "kept")
}

// copiesWithPositions: records and the positions they were read at are committed together, or neither.
func copiesWithPositions(ctx context.Context) error {
	source, err := create(ctx, "copied", 1)
	if err != nil {
		return err
	}
	target, err := create(ctx, "copies", 1)
	if err != nil {
		return err
	}
	if _, err := produce(ctx, source); err != nil {
		return err
	}
	group := "group-" + source
	copyTen := func(end kgo.TransactionEndTry) error {
		session, err := kgo.NewGroupTransactSession(
			kgo.SeedBrokers(bootstrap), kgo.FetchMaxWait(50*time.Millisecond), kgo.TransactionalID(target),
			kgo.ConsumerGroup(group), kgo.ConsumeTopics(source), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.RequireStableFetchOffsets(), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.MaxConcurrentFetches(1),
		)
		if err != nil {
			return err
		}
		defer session.Close()
		fetches := session.PollRecords(ctx, 10)
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := session.Begin(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			copied := &kgo.Record{Topic: target, Value: fmt.Append(nil, record.Offset)}
			if err := session.ProduceSync(ctx, copied).FirstErr(); err != nil {
				return err
			}
		}
		committed, err := session.End(ctx, end)
		if err == nil && committed != bool(end) {
			err = fmt.Errorf("committed: %v", committed)
		}
		return err
	}
	if err := errors.Join(copyTen(kgo.TryCommit), copyTen(kgo.TryAbort), copyTen(kgo.TryCommit)); err != nil {
		return err
	}
	wanted := []string{}
	for offset := range 20 {
		wanted = append(wanted, fmt.Sprint(offset))
	}
	fetched := admin.FetchManyOffsets(ctx, group)
	if at, ok := fetched[group].Fetched.Lookup(source, 0); !ok || at.At != 20 {
		return fmt.Errorf("the group is at %v", fetched[group].Fetched)
	}
	return expect(ctx, target, kgo.ReadCommitted(), wanted...)
}

func adminTransactions(ctx context.Context) error {
	topic, err := create(ctx, "admin", 1)
	if err != nil {
		return err
	}
	producer := transactional(topic)
	defer producer.Close()
	if err := producer.BeginTransaction(); err != nil {
		return err
	}
	if err := producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr(); err != nil {
		return err
	}
	listed, err := admin.ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		return err
	}
	if one, ok := listed[topic]; !ok || one.State != "Ongoing" {
		return fmt.Errorf("listed: %+v", listed)
	}
	described, err := admin.DescribeTransactions(ctx, topic)
	if err != nil {
		return err
	}
	one := described[topic]
	if one.Err != nil || one.State != "Ongoing" || !one.Topics.Lookup(topic, 0) {
		return fmt.Errorf("described: %+v", one)
	}
	var set = one.Topics
	producers, err := admin.DescribeProducers(ctx, set)
	if err != nil {
		return err
	}
	if text := fmt.Sprintf("%+v", producers); !strings.Contains(text, fmt.Sprint(one.ProducerID)) {
		return fmt.Errorf("producers: %s", text)
	}
	return producer.EndTransaction(ctx, kgo.TryAbort)
}
