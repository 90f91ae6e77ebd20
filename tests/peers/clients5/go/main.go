// The scenarios of ../README.md with the Go client of RocketMQ 5: `flow ENDPOINTS [SCENARIO ...]`.
//
// Topics and groups exist already, as `go-SCENARIO`. Prints one JSON line for each scenario; scenarios run side by side.
// `dead` consumes until the input ends. The client knows neither recalls nor priorities.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	client    = "go"
	await     = 5 * time.Second
	invisible = 30 * time.Second
	shortest  = 10 * time.Second
	wait      = 90 * time.Second
	slowness  = 30 * time.Second
)

type object = map[string]any

var (
	background = context.Background()
	all        = rmq.SUB_ALL
	ended      = make(chan struct{})
)

var scenarios = map[string]func() object{
	"normal":      normal,
	"again":       again,
	"fifo-push":   fifoPush,
	"fifo-simple": fifoSimple,
	"fifo-dead":   fifoDead,
	"delay":       delay,
	"transaction": transaction,
	"push":        pushed,
	"slow":        slow,
	"dead":        dead,
	"filter-tag":  func() object { return filtered("filter-tag", rmq.NewFilterExpression("A || C"), 8) },
	"filter-sql": func() object {
		return filtered("filter-sql", rmq.NewFilterExpressionWithType("i > 5 AND TAGS = 'A'", rmq.SQL92), 2)
	},
	"errors": errors,
}

func normal() object {
	sender, consumer := producer("normal"), simple("normal", all)
	defer sender.GracefulStop()
	defer consumer.GracefulStop()
	ids := map[string]string{}
	for i := range 12 {
		ids[fmt.Sprintf("body-%d", i)] = send(sender, message("normal", i)).MessageID
	}
	got := receive(consumer, 12, invisible)
	same := true
	for _, each := range got {
		check(consumer.Ack(background, each))
		same = same && each.GetMessageId() == ids[body(each)]
	}
	return object{"messages": shapes(got), "idsAsSent": same, "afterAcks": left(consumer)}
}

func again() object {
	sender, consumer := producer("again"), simple("again", all)
	defer sender.GracefulStop()
	defer consumer.GracefulStop()
	send(sender, message("again", 0))
	first := receive(consumer, 1, shortest)[0]
	received := time.Now()
	second := receive(consumer, 1, shortest)[0]
	early := time.Since(received) < 9*time.Second
	check(consumer.ChangeInvisibleDuration(second, 3*time.Second))
	changed := time.Now()
	third := receive(consumer, 1, invisible)[0]
	early = early || time.Since(changed) < 2*time.Second
	late := failure(consumer.Ack(background, first))
	check(consumer.Ack(background, third))
	return object{
		"attempts": []int32{first.GetDeliveryAttempt(), second.GetDeliveryAttempt(), third.GetDeliveryAttempt()},
		"tooEarly": early, "sameId": first.GetMessageId() == third.GetMessageId(), "expiredHandle": late,
		"afterAck": left(consumer),
	}
}

func fifoPush() object {
	var lock sync.Mutex
	order, attempts, count := map[string][]string{}, []string{}, 0
	sender := producer("fifo-push")
	defer sender.GracefulStop()
	for i := range 12 {
		made := message("fifo-push", i)
		made.SetMessageGroup(fmt.Sprintf("group-%d", i%3))
		send(sender, made)
	}
	consumer := push("fifo-push", func(got *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		if body(got) == "body-4" {
			attempts = append(attempts, fmt.Sprintf("body-4/%d", got.GetDeliveryAttempt()))
			if len(attempts) == 1 {
				return rmq.FAILURE
			}
		}
		order[*got.GetMessageGroup()] = append(order[*got.GetMessageGroup()], body(got))
		count++
		return rmq.SUCCESS
	})
	defer consumer.GracefulStop()
	until(func() bool { lock.Lock(); defer lock.Unlock(); return count >= 12 })
	return object{"order": order, "attempts": attempts}
}

func fifoSimple() object {
	sender, consumer := producer("fifo-simple"), simple("fifo-simple", all)
	defer sender.GracefulStop()
	defer consumer.GracefulStop()
	for i := range 4 {
		made := message("fifo-simple", i)
		made.SetMessageGroup("group")
		send(sender, made)
	}
	first := receiveOnce(consumer, 2, invisible)
	blocked := bodies(received(consumer, 2, invisible))
	for _, each := range first {
		check(consumer.Ack(background, each))
	}
	second := receiveOnce(consumer, 2, shortest)
	third := receiveOnce(consumer, 2, invisible)
	attempts := []int32{}
	for _, each := range third {
		check(consumer.Ack(background, each))
		attempts = append(attempts, each.GetDeliveryAttempt())
	}
	return object{
		"first": bodies(first), "whileHeld": blocked, "second": bodies(second), "again": bodies(third),
		"attempts": attempts, "afterAcks": len(received(consumer, 2, shortest)),
	}
}

func fifoDead() object {
	var lock sync.Mutex
	deliveries, done := []string{}, false
	sender := producer("fifo-dead")
	defer sender.GracefulStop()
	for i := range 2 {
		made := message("fifo-dead", i)
		made.SetMessageGroup("group")
		send(sender, made)
	}
	consumer := push("fifo-dead", func(got *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		deliveries = append(deliveries, fmt.Sprintf("%s/%d", body(got), got.GetDeliveryAttempt()))
		if body(got) == "body-0" {
			return rmq.FAILURE
		}
		done = true
		return rmq.SUCCESS
	})
	defer consumer.GracefulStop()
	until(func() bool { lock.Lock(); defer lock.Unlock(); return done })
	return object{"deliveries": deliveries}
}

func delay() object {
	sender, consumer := producer("delay"), simple("delay", all)
	defer sender.GracefulStop()
	defer consumer.GracefulStop()
	due := time.Now().Add(4 * time.Second)
	made := message("delay", 0)
	made.SetDelayTimestamp(due)
	send(sender, made)
	got := receive(consumer, 1, invisible)
	late := time.Since(due)
	check(consumer.Ack(background, got[0]))
	at := got[0].GetDeliveryTimestamp()
	return object{
		"messages": shapes(got), "early": late < -time.Second, "late": late > 5*time.Second,
		"dueAsSent": at != nil && at.Sub(due).Abs() <= time.Second,
	}
}

func transaction() object {
	var lock sync.Mutex
	checked, asked := []object{}, map[string]int{}
	sender := producer("transaction", rmq.WithTransactionChecker(&rmq.TransactionChecker{
		Check: func(got *rmq.MessageView) rmq.TransactionResolution {
			lock.Lock()
			defer lock.Unlock()
			name := body(got)
			asked[name]++
			if asked[name] == 1 && name >= "body-2" { // an end may be under way
				checked = append(checked, shape(got))
			}
			switch {
			case name == "body-2":
				return rmq.COMMIT
			case name == "body-4" && asked[name] == 1:
				return rmq.UNKNOWN
			}
			return rmq.ROLLBACK
		},
	}))
	consumer := simple("transaction", all)
	defer sender.GracefulStop()
	defer consumer.GracefulStop()
	for i := range 5 {
		begun := sender.BeginTransaction()
		_, err := sender.SendWithTransaction(background, message("transaction", i), begun)
		check(err)
		switch i {
		case 0:
			check(begun.Commit())
		case 1:
			check(begun.RollBack())
		}
	}
	got := receive(consumer, 2, invisible)
	for _, each := range got {
		check(consumer.Ack(background, each))
	}
	until(func() bool {
		lock.Lock()
		defer lock.Unlock()
		return asked["body-3"] >= 1 && asked["body-4"] >= 2
	})
	rest := left(consumer)
	lock.Lock()
	defer lock.Unlock()
	sort.Slice(checked, func(a, b int) bool { return checked[a]["body"].(string) < checked[b]["body"].(string) })
	return object{"messages": shapes(got), "checked": checked, "afterAcks": rest}
}

func pushed() object {
	var lock sync.Mutex
	attempts, seen := map[string][]int32{}, []*rmq.MessageView{}
	sender := producer("push")
	defer sender.GracefulStop()
	for i := range 12 {
		send(sender, message("push", i))
	}
	consumer := push("push", func(got *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		attempts[body(got)] = append(attempts[body(got)], got.GetDeliveryAttempt())
		if body(got) == "body-3" && got.GetDeliveryAttempt() == 1 {
			return rmq.FAILURE
		}
		seen = append(seen, got)
		return rmq.SUCCESS
	})
	defer consumer.GracefulStop()
	until(func() bool { lock.Lock(); defer lock.Unlock(); return len(seen) >= 12 })
	return object{"attempts": attempts, "messages": shapes(seen)}
}

func slow() object {
	var lock sync.Mutex
	attempts, consumed := map[string][]int32{}, map[string]bool{}
	sender := producer("slow")
	defer sender.GracefulStop()
	for i := range 2 {
		send(sender, message("slow", i))
	}
	consumer := push("slow", func(got *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		attempts[body(got)] = append(attempts[body(got)], got.GetDeliveryAttempt())
		lock.Unlock()
		if got.GetDeliveryAttempt() == 1 {
			time.Sleep(slowness)
			if body(got) == "body-1" {
				return rmq.FAILURE
			}
		}
		lock.Lock()
		defer lock.Unlock()
		consumed[body(got)] = true
		return rmq.SUCCESS
	})
	defer consumer.GracefulStop()
	until(func() bool { lock.Lock(); defer lock.Unlock(); return len(consumed) == 2 })
	return object{"attempts": attempts}
}

func dead() object {
	var lock sync.Mutex
	attempts := []int32{}
	sender := producer("dead")
	defer sender.GracefulStop()
	send(sender, message("dead", 0))
	consumer := push("dead", func(got *rmq.MessageView) rmq.ConsumerResult {
		lock.Lock()
		defer lock.Unlock()
		attempts = append(attempts, got.GetDeliveryAttempt())
		return rmq.FAILURE
	})
	defer consumer.GracefulStop()
	until(func() bool { lock.Lock(); defer lock.Unlock(); return len(attempts) >= 2 })
	select {
	case <-ended:
	case <-time.After(wait):
	}
	return object{"attempts": attempts}
}

func filtered(name string, expression *rmq.FilterExpression, wanted int) object {
	sender, consumer := producer(name), simple(name, expression)
	defer sender.GracefulStop()
	defer consumer.GracefulStop()
	for i := range 12 {
		send(sender, message(name, i))
	}
	got := receive(consumer, wanted, invisible)
	for _, each := range got {
		check(consumer.Ack(background, each))
	}
	found := bodies(got)
	sort.Strings(found)
	return object{"bodies": found, "afterAcks": left(consumer)}
}

func errors() object {
	saw := object{}
	sender := producer("errors")
	defer sender.GracefulStop()
	try := func(name string, made *rmq.Message) {
		_, err := sender.Send(background, made)
		saw[name] = failure(err)
	}
	try("missingTopic", message("missing", 0))
	wrong := message("errors", 0)
	wrong.SetMessageGroup("group")
	try("fifoToNormal", wrong)
	try("normalToFifo", message("fifo-push", 0))
	far := message("delay", 0)
	far.SetDelayTimestamp(time.Now().Add(100 * 24 * time.Hour))
	try("tooFarAhead", far)
	ask := func(name, group string, expression *rmq.FilterExpression) {
		consumer := simpleOf("errors", group, expression)
		defer consumer.GracefulStop()
		time.Sleep(2 * time.Second) // until the proxy has the client's settings
		_, err := consumer.Receive(background, 1, shortest)
		saw[name] = failure(err)
	}
	ask("badSql", topic("errors"), rmq.NewFilterExpressionWithType("i >", rmq.SQL92))
	ask("missingGroup", topic("missing"), all)
	return saw
}

// -- parts ---------------------------------------------------------------------------------------------------

func topic(scenario string) string { return client + "-" + scenario }

func config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func message(scenario string, i int) *rmq.Message {
	made := &rmq.Message{Topic: topic(scenario), Body: fmt.Appendf(nil, "body-%d", i)}
	made.SetTag(string("ABC"[i%3]))
	made.SetKeys(fmt.Sprintf("k-%d", i), "all")
	made.AddProperty("i", fmt.Sprint(i))
	made.AddProperty("name", fmt.Sprintf("näme-%d", i))
	return made
}

func producer(scenario string, options ...rmq.ProducerOption) rmq.Producer {
	made, err := rmq.NewProducer(config(""), append(options, rmq.WithTopics(topic(scenario)))...)
	check(err)
	check(made.Start())
	return made
}

func simple(scenario string, expression *rmq.FilterExpression) rmq.SimpleConsumer {
	return simpleOf(scenario, topic(scenario), expression)
}

func simpleOf(scenario, group string, expression *rmq.FilterExpression) rmq.SimpleConsumer {
	made, err := rmq.NewSimpleConsumer(config(group), rmq.WithSimpleAwaitDuration(await),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic(scenario): expression}))
	check(err)
	check(made.Start())
	return made
}

func push(scenario string, listen func(*rmq.MessageView) rmq.ConsumerResult) rmq.PushConsumer {
	made, err := rmq.NewPushConsumer(config(topic(scenario)), rmq.WithPushAwaitDuration(await),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic(scenario): all}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listen}),
		rmq.WithPushConsumptionThreadCount(4))
	check(err)
	check(made.Start())
	return made
}

func send(sender rmq.Producer, made *rmq.Message) *rmq.SendReceipt {
	receipts, err := sender.Send(background, made)
	check(err)
	return receipts[0]
}

// received is one receive; none where the proxy has nothing, which the client says by an error, or got it before the
// client's settings.
func received(consumer rmq.SimpleConsumer, count int, hidden time.Duration) []*rmq.MessageView {
	got, err := consumer.Receive(background, int32(count), hidden)
	if err != nil {
		if text := err.Error(); !strings.Contains(text, "MESSAGE_NOT_FOUND") && !strings.Contains(text, `"settings" is null`) {
			panic(err)
		}
	}
	return got
}

func receive(consumer rmq.SimpleConsumer, count int, hidden time.Duration) []*rmq.MessageView {
	got := []*rmq.MessageView{}
	until(func() bool {
		got = append(got, received(consumer, min(16, count-len(got)), hidden)...)
		return len(got) >= count
	})
	return got
}

// receiveOnce is what the first receive that brings anything brings.
func receiveOnce(consumer rmq.SimpleConsumer, count int, hidden time.Duration) []*rmq.MessageView {
	var got []*rmq.MessageView
	until(func() bool { got = received(consumer, count, hidden); return len(got) > 0 })
	return got
}

func left(consumer rmq.SimpleConsumer) int { return len(received(consumer, 16, shortest)) }

func until(condition func() bool) {
	for deadline := time.Now().Add(wait); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic(fmt.Errorf("not within %v", wait))
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func failure(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}

func body(got *rmq.MessageView) string { return string(got.GetBody()) }

func bodies(messages []*rmq.MessageView) []string {
	found := []string{}
	for _, each := range messages {
		found = append(found, body(each))
	}
	return found
}

func shape(got *rmq.MessageView) object {
	keys := append([]string{}, got.GetKeys()...)
	sort.Strings(keys)
	born := got.GetBornTimestamp()
	return object{
		"body": body(got), "tag": got.GetTag(), "keys": keys, "properties": got.GetProperties(),
		"group": got.GetMessageGroup(), "topic": got.GetTopic(), "attempt": got.GetDeliveryAttempt(),
		"born": born != nil && born.UnixMilli() > 0,
	}
}

func shapes(messages []*rmq.MessageView) []object {
	found := []object{}
	for _, each := range messages {
		found = append(found, shape(each))
	}
	sort.Slice(found, func(a, b int) bool { return found[a]["body"].(string) < found[b]["body"].(string) })
	return found
}

func run(name string) (line object) {
	defer func() {
		if problem := recover(); problem != nil {
			line = object{"scenario": name, "error": fmt.Sprint(problem)}
		}
	}()
	return object{"scenario": name, "saw": scenarios[name]()}
}

func main() {
	rmq.ResetLogger()
	names := os.Args[2:]
	if len(names) == 0 {
		for name := range scenarios {
			names = append(names, name)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	lines, failed := make(chan object), false
	for _, name := range names {
		go func() { lines <- run(name) }()
	}
	for range names {
		line := <-lines
		_, broken := line["error"]
		failed = failed || broken
		text, err := json.Marshal(line)
		check(err)
		fmt.Println(string(text))
	}
	if failed {
		os.Exit(1)
	}
}
