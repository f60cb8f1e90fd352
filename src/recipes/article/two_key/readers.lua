-- Stands before the scripts on the readers of two_key.
--
-- KEYS[1]  the read key: a STRING. A program on the article's scripts writes 1 there, over whatever
-- was there; we write our readers' tokens and ends (milliseconds since 1970 by the server's clock)
-- as a JSON object. The empty token stands for the readers that are not ours: the key had their end
-- when the first of ours came.
--
-- The article's scripts ask only whether the key exists, so our list does them no harm. The key
-- ends with the last reader.

-- The server's clock in milliseconds, and what the read key holds. A key of another type stops the
-- script here.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value = redis.call('GET', KEYS[1])

-- The readers that are in, by token, or nil if the key holds anything else than what we write.
-- `pcall` catches the error on anything that is no JSON. A program on the article's scripts writes
-- `1`, which is JSON, but no table. An empty table names no reader, and we never write one.
local function listed()
  local is_json, found = pcall(cjson.decode, value)
  if not is_json or type(found) ~= 'table' or not next(found) then
    return nil
  end
  -- Tokens and their ends. One pair of any other kind, and the list is not ours: it counts as a
  -- reader whom we do not know. Written as `not (… < …)`, because that is also true of what is no
  -- number (NaN).
  local readers = {}
  for token, ending in pairs(found) do
    if type(token) ~= 'string' or type(ending) ~= 'number' or not (ending < 9007199254740992) then
      return nil
    end
    -- A reader whose end has passed is left out. A list of such readers only is empty, but still
    -- ours.
    if ending >= now then
      readers[token] = ending
    end
  end
  return readers
end

-- Writes the list, or deletes the key if there is no reader. The key ends a millisecond after the
-- last reader, for the reason in `read_write/holders.lua`.
local function store(readers)
  local last = 0
  for _, ending in pairs(readers) do
    last = math.max(last, ending)
  end
  if last == 0 then
    redis.call('DEL', KEYS[1])
  else
    local left = string.format('%.0f', last - now + 1)
    redis.call('SET', KEYS[1], cjson.encode(readers), 'PX', left)
  end
end
