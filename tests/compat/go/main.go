// What franz-go must be able to do, one scenario after the other in one process.
//
// Usage: compat BOOTSTRAP. Prints "PASS name" or "FAIL name: why" a scenario.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	count         = 200
	baseTimestamp = 1_700_000_000_000
	deadline      = 30 * time.Second
)

var (
	bootstrap string
	admin     *kadm.Client
	topics    int
)

func main() {
	bootstrap = os.Args[1]
	admin = kadm.NewClient(client())
	defer admin.Close()
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		play("codec-"+name, func(ctx context.Context) error { return roundTrip(ctx, codec) })
	}
	play("keyed", keyed)
	play("not-idempotent", notIdempotent)
	play("auto-created", autoCreated)
	play("resume", resume)
	play("share-range", func(ctx context.Context) error { return share(ctx, kgo.RangeBalancer()) })
	play("share-cooperative-sticky", func(ctx context.Context) error { return share(ctx, kgo.CooperativeStickyBalancer()) })
	play("static-member", staticMember)
	play("fenced-member", fencedMember)
	play("cooperative-rebalances", cooperativeRebalances)
	play("offsets-by-timestamp", offsetsByTimestamp)
	play("transactions", transactions)
	play("fenced-producer", fencedProducer)
	play("copies-with-positions", copiesWithPositions)
	play("admin-transactions", adminTransactions)
	play("admin-topics", adminTopics)
	play("admin-groups", adminGroups)
	play("admin-group-members", adminGroupMembers)
	play("admin-cluster", adminCluster)
}

func play(name string, scenario func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := scenario(ctx); err != nil {
		fmt.Printf("FAIL %s: %s\n", name, strings.ReplaceAll(err.Error(), "\n", " | "))
		return
	}
	fmt.Printf("PASS %s\n", name)
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.FetchMaxWait(50 * time.Millisecond)}, options...)...)
	if err != nil {
		panic(err)
	}
	return made
}

func create(ctx context.Context, name string, partitions int32) (string, error) {
	topics++
	topic := fmt.Sprintf("franz-go-%s-%d-%d", name, os.Getpid(), topics)
	if _, err := admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		return topic, err
	}
	for { // Kafka answers before the broker knows the topic
		listed, err := admin.ListTopics(ctx, topic)
		if err != nil || len(listed[topic].Partitions) == int(partitions) {
			return topic, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func sample(topic string, i int) *kgo.Record {
	record := &kgo.Record{Topic: topic, Timestamp: time.UnixMilli(baseTimestamp + int64(i))}
	if i%10 != 9 {
		record.Key = fmt.Appendf(nil, "key-%d", i%7)
	}
	if i%25 != 23 {
		record.Value = fmt.Appendf(nil, "value-%d %s", i, strings.Repeat("x", i*3))
	}
	if i%3 == 0 {
		record.Headers = []kgo.RecordHeader{{Key: "trace", Value: fmt.Append(nil, i)}, {Key: "empty", Value: []byte{}}}
	}
	return record
}

func produce(ctx context.Context, topic string, options ...kgo.Opt) ([]*kgo.Record, error) {
	producer := client(append(options, kgo.ProducerLinger(5*time.Millisecond))...)
	defer producer.Close()
	var records []*kgo.Record
	for i := range count {
		records = append(records, sample(topic, i))
	}
	return records, producer.ProduceSync(ctx, records...).FirstErr()
}

func take(ctx context.Context, consumer *kgo.Client, wanted int) ([]*kgo.Record, error) {
	var taken []*kgo.Record
	for len(taken) < wanted {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("%d of %d records: %w", len(taken), wanted, err)
		}
		taken = append(taken, fetches.Records()...)
	}
	return taken, nil
}

func roundTrip(ctx context.Context, codec kgo.CompressionCodec) error {
	topic, err := create(ctx, "codec", 1)
	if err != nil {
		return err
	}
	if _, err := produce(ctx, topic, kgo.ProducerBatchCompression(codec)); err != nil {
		return err
	}
	reader := client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer reader.Close()
	taken, err := take(ctx, reader, count)
	if err != nil {
		return err
	}
	for i, record := range taken {
		sent := sample(topic, i)
		same := record.Offset == int64(i) && bytes.Equal(record.Key, sent.Key) && bytes.Equal(record.Value, sent.Value) &&
			(record.Value == nil) == (sent.Value == nil) && record.Timestamp.Equal(sent.Timestamp) && len(record.Headers) == len(sent.Headers)
		if !same {
			return fmt.Errorf("record %d is %v", i, record)
		}
	}
	return nil
}

func keyed(ctx context.Context) error {
	topic, err := create(ctx, "keyed", 4)
	if err != nil {
		return err
	}
	records, err := produce(ctx, topic)
	if err != nil {
		return err
	}
	partitions := map[string]int32{}
	for _, record := range records {
		if record.Key == nil {
			continue
		}
		if known, ok := partitions[string(record.Key)]; ok && known != record.Partition {
			return fmt.Errorf("%s is in partitions %d and %d", record.Key, known, record.Partition)
		}
		partitions[string(record.Key)] = record.Partition
	}
	return nil
}

func notIdempotent(ctx context.Context) error {
	topic, err := create(ctx, "plain", 1)
	if err != nil {
		return err
	}
	records, err := produce(ctx, topic, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
	if err == nil && records[count-1].Offset != count-1 {
		err = fmt.Errorf("the last offset is %d", records[count-1].Offset)
	}
	return err
}

func autoCreated(ctx context.Context) error {
	topic := fmt.Sprintf("franz-go-auto-%d", os.Getpid())
	producer := client(kgo.AllowAutoTopicCreation())
	defer producer.Close()
	return producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("first")}).FirstErr()
}

func member(group, topic string, options ...kgo.Opt) *kgo.Client {
	return client(append([]kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.HeartbeatInterval(100 * time.Millisecond),
	}, options...)...)
}

func resume(ctx context.Context) error {
	topic, err := create(ctx, "resume", 1)
	if err != nil {
		return err
	}
	if _, err := produce(ctx, topic); err != nil {
		return err
	}
	first := member("group-"+topic, topic)
	taken, err := take(ctx, first, 50)
	if err == nil {
		err = first.CommitRecords(ctx, taken[49])
	}
	first.Close()
	if err != nil {
		return err
	}
	second := member("group-"+topic, topic)
	defer second.Close()
	rest, err := take(ctx, second, 1)
	if err == nil && rest[0].Offset != 50 {
		err = fmt.Errorf("resumed at %d", rest[0].Offset)
	}
	return err
}

// owned polls until the group's members hold as many partitions as wanted, by client id.
func owned(ctx context.Context, group string, wanted map[string]int) error {
	for {
		described, err := admin.DescribeGroups(ctx, group)
		if err != nil {
			return err
		}
		found := map[string]int{}
		for _, one := range described[group].Members {
			if assigned, ok := one.Assigned.AsConsumer(); ok {
				for _, topic := range assigned.Topics {
					found[one.ClientID] += len(topic.Partitions)
				}
			}
		}
		if described[group].State == "Stable" && fmt.Sprint(found) == fmt.Sprint(wanted) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the group is %s and holds %v instead of %v", described[group].State, found, wanted)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// poll keeps a member in its group until the returned function ends it.
func poll(consumer *kgo.Client) func() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			consumer.PollFetches(ctx)
		}
	}()
	return func() {
		cancel()
		<-done
		consumer.Close()
	}
}

func share(ctx context.Context, balancer kgo.GroupBalancer) error {
	topic, err := create(ctx, "share", 4)
	if err != nil {
		return err
	}
	group := "group-" + topic
	defer poll(member(group, topic, kgo.Balancers(balancer), kgo.ClientID("one")))()
	if err := owned(ctx, group, map[string]int{"one": 4}); err != nil {
		return err
	}
	leave := poll(member(group, topic, kgo.Balancers(balancer), kgo.ClientID("two")))
	err = owned(ctx, group, map[string]int{"one": 2, "two": 2})
	leave()
	if err != nil {
		return err
	}
	return owned(ctx, group, map[string]int{"one": 4})
}

func staticMember(ctx context.Context) error {
	topic, err := create(ctx, "static", 4)
	if err != nil {
		return err
	}
	group := "group-" + topic
	defer poll(member(group, topic, kgo.InstanceID("one"), kgo.ClientID("one")))()
	second := member(group, topic, kgo.InstanceID("two"), kgo.ClientID("two"))
	end := poll(second)
	if err := owned(ctx, group, map[string]int{"one": 2, "two": 2}); err != nil {
		end()
		return err
	}
	_, generation := second.GroupMetadata()
	end() // a static member does not leave
	again := member(group, topic, kgo.InstanceID("two"), kgo.ClientID("two"))
	defer poll(again)()
	for {
		if id, now := again.GroupMetadata(); id != "" {
			if now != generation {
				return fmt.Errorf("generation %d after %d", now, generation)
			}
			return owned(ctx, group, map[string]int{"one": 2, "two": 2})
		}
		select {
		case <-ctx.Done():
			return errors.New("the member did not come back")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// fencedMember: a second bearer of an instance id takes the first one's place, and the first hears of it.
func fencedMember(ctx context.Context) error {
	topic, err := create(ctx, "fenced", 1)
	if err != nil {
		return err
	}
	group := "group-" + topic
	first := member(group, topic, kgo.InstanceID("one"), kgo.ClientID("first"))
	defer first.Close()
	polled := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := first.PollFetches(ctx).Err(); err != nil {
				polled <- err
				return
			}
		}
	}()
	if err := owned(ctx, group, map[string]int{"first": 1}); err != nil {
		return err
	}
	defer poll(member(group, topic, kgo.InstanceID("one"), kgo.ClientID("second")))()
	select {
	case err := <-polled:
		if !errors.Is(err, kerr.FencedInstanceID) {
			return fmt.Errorf("the first member heard %w", err)
		}
	case <-ctx.Done():
		return errors.New("the first member was not fenced")
	}
	described, err := admin.DescribeGroups(ctx, group)
	if err == nil && len(described[group].Members) != 1 {
		err = fmt.Errorf("%d members", len(described[group].Members))
	}
	return err
}

// cooperativeRebalances: members, some of them static, come and go while records flow; none is missed.
func cooperativeRebalances(ctx context.Context) error {
	topic, err := create(ctx, "rebalances", 6)
	if err != nil {
		return err
	}
	group := "group-" + topic
	var mutex sync.Mutex
	seen := map[string]bool{}
	enter := func(name string, options ...kgo.Opt) (leave func()) {
		consumer := member(group, topic, append(options, kgo.ClientID(name), kgo.Balancers(kgo.CooperativeStickyBalancer()))...)
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				fetches := consumer.PollFetches(ctx)
				mutex.Lock()
				fetches.EachRecord(func(one *kgo.Record) { seen[fmt.Sprint(one.Partition, ":", one.Offset)] = true })
				mutex.Unlock()
				_ = consumer.CommitRecords(ctx, fetches.Records()...)
			}
		}()
		return func() {
			cancel()
			<-done
			consumer.Close()
		}
	}
	all := func(wanted int) error {
		for {
			mutex.Lock()
			found := len(seen)
			mutex.Unlock()
			if found == wanted {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%d of %d records", found, wanted)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	step := func(shares map[string]int, rounds int) error {
		if err := owned(ctx, group, shares); err != nil {
			return err
		}
		if _, err := produce(ctx, topic); err != nil {
			return err
		}
		return all(rounds * count)
	}
	defer enter("one", kgo.InstanceID("i-one"))()
	leaveTwo := enter("two")
	defer enter("three", kgo.InstanceID("i-three"))()
	err = step(map[string]int{"one": 2, "two": 2, "three": 2}, 1)
	leaveTwo()
	if err != nil {
		return err
	}
	if err := step(map[string]int{"one": 3, "three": 3}, 2); err != nil {
		return err
	}
	defer enter("four")()
	return step(map[string]int{"one": 2, "three": 2, "four": 2}, 3)
}

func offsetsByTimestamp(ctx context.Context) error {
	topic, err := create(ctx, "times", 1)
	if err != nil {
		return err
	}
	if _, err := produce(ctx, topic); err != nil {
		return err
	}
	found, err := admin.ListOffsetsAfterMilli(ctx, baseTimestamp+77, topic)
	if err != nil {
		return err
	}
	if at, _ := found.Lookup(topic, 0); at.Offset != 77 {
		return fmt.Errorf("offset %d", at.Offset)
	}
	return nil
}

func adminTopics(ctx context.Context) error {
	topic, err := create(ctx, "admin", 3)
	if err != nil {
		return err
	}
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, topic); !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("created twice: %w", err)
	}
	if _, err := admin.UpdatePartitions(ctx, 5, topic); err != nil {
		return err
	}
	value := "3600000"
	if _, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &value}}, topic); err != nil {
		return err
	}
	listed, err := admin.ListTopics(ctx, topic)
	if err != nil || len(listed[topic].Partitions) != 5 {
		return fmt.Errorf("%d partitions: %w", len(listed[topic].Partitions), err)
	}
	if _, err := admin.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	listed, err = admin.ListTopics(ctx)
	if err == nil && listed.Has(topic) {
		err = errors.New("the deleted topic is listed")
	}
	return err
}

func adminGroups(ctx context.Context) error {
	topic, err := create(ctx, "groups", 1)
	if err != nil {
		return err
	}
	group := "group-" + topic
	var offsets kadm.Offsets
	offsets.AddOffset(topic, 0, 5, -1)
	if _, err := admin.CommitOffsets(ctx, group, offsets); err != nil {
		return err
	}
	committed, err := admin.FetchOffsets(ctx, group)
	if at, _ := committed.Lookup(topic, 0); err != nil || at.At != 5 {
		return fmt.Errorf("committed %d: %w", at.At, err)
	}
	_, err = admin.DeleteGroup(ctx, group)
	return err
}

// adminGroupMembers: lag, offsets of topics that are consumed, and members removed by their instance ids.
func adminGroupMembers(ctx context.Context) error {
	topic, err := create(ctx, "members", 1)
	if err != nil {
		return err
	}
	other, err := create(ctx, "members-other", 1)
	if err != nil {
		return err
	}
	group := "group-" + topic
	consumer := member(group, topic, kgo.InstanceID("one"), kgo.ClientID("one"))
	end := poll(consumer)
	err = owned(ctx, group, map[string]int{"one": 1})
	end() // a static member does not leave
	if err != nil {
		return err
	}
	var offsets kadm.Offsets
	offsets.AddOffset(topic, 0, 5, -1)
	if err := admin.CommitAllOffsets(ctx, group, offsets); !errors.Is(err, kerr.UnknownMemberID) {
		return fmt.Errorf("an outsider committed: %w", err)
	}
	listed, err := admin.ListGroups(ctx, "Stable")
	if err != nil || listed[group].ProtocolType != "consumer" {
		return fmt.Errorf("listed as %+v: %w", listed[group], err)
	}
	var consumed kadm.TopicsSet
	consumed.Add(topic, 0)
	consumed.Add(other, 0)
	deleted, err := admin.DeleteOffsets(ctx, group, consumed)
	if err != nil {
		return err
	}
	if refused, _ := deleted.Lookup(topic, 0); !errors.Is(refused, kerr.GroupSubscribedToTopic) {
		return fmt.Errorf("deleted offsets that are used: %w", refused)
	}
	if refused, _ := deleted.Lookup(other, 0); refused != nil {
		return refused
	}
	if _, err := admin.DeleteGroup(ctx, group); !errors.Is(err, kerr.NonEmptyGroup) {
		return fmt.Errorf("deleted with members: %w", err)
	}
	left, err := admin.LeaveGroup(ctx, kadm.LeaveGroup(group).InstanceIDs("one").Reason("moved"))
	if err != nil || left.Error() != nil {
		return fmt.Errorf("left: %+v: %w", left, err)
	}
	if _, err := produce(ctx, topic); err != nil {
		return err
	}
	if err := admin.CommitAllOffsets(ctx, group, offsets); err != nil {
		return err
	}
	lags, err := admin.Lag(ctx, group)
	if err != nil || lags[group].State != "Empty" || lags[group].Lag.Total() != count-5 {
		return fmt.Errorf("lag: %+v: %w", lags[group], err)
	}
	found := admin.FetchManyOffsets(ctx, group, "nobody-"+group)
	if at, ok := found[group].Fetched.Lookup(topic, 0); !ok || at.At != 5 || found.Error() != nil {
		return fmt.Errorf("fetched %+v: %w", found, found.Error())
	}
	if deleted, err = admin.DeleteOffsets(ctx, group, consumed); err != nil || deleted.Error() != nil {
		return fmt.Errorf("%w: %w", err, deleted.Error())
	}
	_, err = admin.DeleteGroup(ctx, group)
	return err
}

func adminCluster(ctx context.Context) error {
	metadata, err := admin.BrokerMetadata(ctx)
	if err != nil || metadata.Controller != 1 || len(metadata.Brokers) != 1 || metadata.Cluster == "" {
		return fmt.Errorf("%+v: %w", metadata, err)
	}
	topic, err := create(ctx, "log-dirs", 1)
	if err != nil {
		return err
	}
	if _, err := produce(ctx, topic); err != nil {
		return err
	}
	folders, err := admin.DescribeAllLogDirs(ctx, nil)
	if err != nil {
		return err
	}
	if part, ok := folders[1].LookupPartition(topic, 0); !ok || part.Size < 1000 {
		return fmt.Errorf("the log's size is %d", part.Size)
	}
	return nil
}
