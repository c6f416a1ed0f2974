"""What Redis does in one step, in its own language. Each script may be sent twice: the second does nothing.

A partition's hash has the fields `owner` (who took it last), `next` (the offset after the last that is done)
and, while a record is in progress, `doing` (its offset), `doing_owner` and `doing_until` (the lease's end).
"""

from __future__ import annotations

TAKE = """
local partition, owner, expire_ms = KEYS[1], ARGV[1], ARGV[2]
redis.call('HSET', partition, 'owner', owner)
redis.call('PEXPIRE', partition, expire_ms)
return redis.call('HGET', partition, 'next') or '0'
"""
"""Whoever takes a partition has it; an earlier owner may still finish the record that it is at."""

ABANDON = """
local partition, seen, owner, forget = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if redis.call('HGET', partition, 'doing_owner') == owner then
    if forget == '1' then
        redis.call('HDEL', partition, 'doing', 'doing_owner', 'doing_until')
        if seen ~= '' and redis.call('GET', seen) == owner .. '@' .. partition then
            redis.call('DEL', seen)
        end
    else
        redis.call('HSET', partition, 'doing_until', '0')
    end
end
"""
"""The handler failed (the record is as before), or was cut off (it is in doubt at once)."""

STEP = """
local partition, done_marks, done_seen, marks, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local owner, lease_ms, expire_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local done, done_sequence = tonumber(ARGV[4]), tonumber(ARGV[5])
local begin, sequence = tonumber(ARGV[6]), tonumber(ARGV[7])
local force, known_next = ARGV[8] == '1', tonumber(ARGV[9])

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function text(number) return string.format('%.0f', number) end

-- Intervals: the member is the first number, the score the last.
local function is_marked(key, number)
    local first = redis.call('ZRANGEBYSCORE', key, text(number), '+inf', 'LIMIT', 0, 1)[1]
    return first and tonumber(first) <= number
end

local function mark(key, number)
    if not is_marked(key, number) then
        local first, last = text(number), text(number)
        local below = redis.call('ZRANGEBYSCORE', key, text(number - 1), text(number - 1))[1]
        local above = redis.call('ZSCORE', key, text(number + 1))
        if below then first = below end
        if above then
            redis.call('ZREM', key, text(number + 1))
            last = text(tonumber(above))
        end
        redis.call('ZADD', key, last, first)
    end
    redis.call('PEXPIRE', key, expire_ms)
end

local fields = redis.call('HMGET', partition, 'owner', 'next', 'doing', 'doing_owner', 'doing_until')
local has, doing, doing_owner = fields[1], tonumber(fields[3] or ''), fields[4]
local next_offset, doing_until = tonumber(fields[2] or '0'), tonumber(fields[5] or '0')
if not has then return {'missing', 'missing', 0} end
if has == owner and next_offset < known_next then return {'forgotten', '', 0} end

local function advance(offset)
    if offset >= next_offset then
        next_offset = offset + 1
        redis.call('HSET', partition, 'next', text(next_offset))
    end
    redis.call('PEXPIRE', partition, expire_ms)
end

if done and done >= next_offset then
    if doing ~= done or doing_owner ~= owner then return {'taken', '', 0} end
    if done_marks ~= '' then mark(done_marks, done_sequence) end
    if done_seen ~= '' then redis.call('SET', done_seen, 'done', 'PX', expire_ms) end
    redis.call('HDEL', partition, 'doing', 'doing_owner', 'doing_until')
    doing = nil
    advance(done)
end

if not begin then return {'', '', 0} end
if has ~= owner then return {'', 'taken', 0} end
if begin < next_offset then return {'', 'repeated', 0} end
if doing and doing_owner ~= owner then
    if doing_until > now then return {'', 'busy', doing_until - now} end
    if doing == begin and not force then return {'', 'doubt', 0} end
end
local earlier = seen ~= '' and redis.call('GET', seen)
if (marks ~= '' and is_marked(marks, sequence)) or earlier == 'done' then
    advance(begin)
    return {'', 'repeated', 0}
end
-- A record in doubt that we were told to begin: whoever had it is gone, and has its key no more.
local by_us = owner .. '@' .. partition
local by_who_is_gone = doing == begin and doing_owner ~= owner and doing_owner .. '@' .. partition
if earlier and earlier ~= by_us and earlier ~= by_who_is_gone then
    return {'', 'busy', redis.call('PTTL', seen)}
end
if seen ~= '' then redis.call('SET', seen, by_us, 'PX', lease_ms) end
redis.call('HSET', partition, 'doing', text(begin), 'doing_owner', owner, 'doing_until', text(now + lease_ms))
redis.call('PEXPIRE', partition, expire_ms)
return {'', 'new', 0}
"""
"""The record before is done, the next one begins: what is there to say of each, and how long to wait."""
